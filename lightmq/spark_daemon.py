"""Spark's daemon of Python workers (`spark.python.daemon.module`), silent about workers that Spark has abandoned.

A query that has all the rows it needs (`limit`, `take`, `show`) closes the connections of its running tasks. The
worker's last flush then fails, and `pyspark.daemon` prints a traceback that reads like a failure of the query. The
worker ends here as it does there, with the same status; only the traceback is left out. Errors of a task reach Spark
through that connection while it is open, and every other error is printed as before.

Invariant: nothing is imported or started before the fork that `pyspark.daemon` does not, and standard output is
Spark's. Thread rule: one thread; workers are forked.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

EXIT_STATUS = 1
"""What `pyspark.daemon` ends such a worker with."""

_serve_tasks = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve the tasks of one connection; its end while output was due is the end of this process."""
    try:
        return _serve_tasks(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(EXIT_STATUS)  # at once: the unflushed file would complain again when it is collected


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
