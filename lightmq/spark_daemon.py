"""Spark's daemon of Python workers (`spark.python.daemon.module`), silent about workers that Spark has abandoned.

A query that has all the rows it needs (`limit`, `take`, `show`) closes the connections of its running tasks. The
worker's last flush then fails, and `pyspark.daemon` prints a traceback that reads like a failure of the query. The
worker ends here as it does there, with the same status; only the traceback is left out. The same where Spark has given
up before the worker could say that it is there, as it does for tasks that wait for one while a query ends. Errors of a
task reach Spark through that connection while it is open, and every other error is printed as before.

Invariant: nothing is imported or started before the fork that `pyspark.daemon` does not, and standard output is
Spark's. Thread rule: one thread; workers are forked.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

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


class Tracebacks:
    """Stands for the module `traceback` in `pyspark.daemon`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that ends a worker, unless Spark has closed its connection."""
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.worker = worker
    daemon.traceback = Tracebacks  # type: ignore[assignment]
    daemon.manager()
