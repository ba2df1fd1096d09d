"""A controller as a process forked from one that has imported everything, so that starting it costs milliseconds.

It is the same application as `lightmq controller` runs, without command line and administration page.
"""

from __future__ import annotations

import asyncio
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.support.warm import CONTEXT

START_S = 60.0


class ForkedController:
    """One of them, on the same ports at every start."""

    def __init__(self, directory: Path, node_id: str, port: int) -> None:
        self.node_id = node_id
        self.port = port
        self.log = directory / f"{node_id}.log"
        self.settings: dict[str, object] = {"data_directory": directory / node_id, "node_id": node_id, "port": port}
        self._process: ForkServerProcess | None = None

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Start and wait until it listens."""
        here, there = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=main, args=(self.settings, self.log, there), daemon=True)
        self._process.start()
        there.close()
        assert here.poll(START_S), "it does not start"
        try:
            assert here.recv() == "ready"
        except EOFError:
            raise AssertionError(self.log.read_text()[-2_000:]) from None

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.join()

    def kill_if_running(self) -> None:
        """At the end of a test, whatever its outcome."""
        if self.running:
            self.kill()


def main(settings: dict[str, object], log: Path, ready: Connection) -> None:
    """What the process runs."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stderr.fileno())
    asyncio.run(_serve(settings, ready))


async def _serve(settings: dict[str, object], ready: Connection) -> None:
    from controller.app import ControllerApp
    from controller.config import ControllerConfig

    application = ControllerApp(ControllerConfig(**settings))  # type: ignore[arg-type]
    await application.start()
    ready.send("ready")
    raise await application.until_failed()
