"""Server processes forked from one that has imported everything: what runs is the command line's own `main`.

The start of an interpreter and the imports are most of what a short-lived server costs, and tests start hundreds. The
process they are forked from starts with the first one, in the environment of that moment; a server with another choice
of compiled modules or a preloaded library must be started as a new process, which `suits` decides.

Invariant: arguments, variables, folder, standard output and error are those of a process started the long way; its
command line in /proc is not. Thread rule: any thread.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.warm_imports"])
READ_AT_IMPORT = ("LIGHTMQ_PURE", "LD_PRELOAD", "PYTHONOPTIMIZE")
"""Variables that a process has no use for once it has imported everything."""


def suits(variables: Mapping[str, str]) -> bool:
    """Whether a server with these variables can be a fork."""
    return all(variables.get(name, "") == os.environ.get(name, "") for name in READ_AT_IMPORT)


class WarmServer:
    """One of them, with what the tests use of a `Popen`."""

    def __init__(self, arguments: Sequence[str], *, folder: Path, log: Path, variables: Mapping[str, str]) -> None:
        here, there = CONTEXT.Pipe(duplex=False)
        given = (list(arguments), str(folder), str(log), dict(variables), there)
        self._process = CONTEXT.Process(target=_serve, args=given, daemon=True)
        self._process.start()
        there.close()
        self.stdout: IO[str] = os.fdopen(os.dup(here.fileno()))
        here.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit status."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("lightmq", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal if it is there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)


def _serve(arguments: list[str], folder: str, log: str, variables: dict[str, str], said: Connection) -> None:
    """What the fork does: become like a process of its own, and run the command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(said.fileno(), 1)
    os.dup2(errors, 2)
    os.close(errors)
    said.close()
    from lightmq.__main__ import main

    sys.argv = ["lightmq", *arguments]
    sys.exit(main(arguments))
