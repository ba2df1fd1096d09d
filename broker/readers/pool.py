"""The broker's side of its reader processes: starts and restarts them, adds up their counts, ends them.

The port is bound here, without listening, for as long as the broker runs: it stays reserved while readers start and
end, and connections reach only processes that listen on it. Readers are announced as soon as one listens. Invariant: no
reader outlives the pool; a reader that dies again and again is started at most every `PAUSE_MAX_S`. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

import msgspec

from broker.metrics import ReaderMetrics
from broker.readers.messages import ReaderReport, ReaderSettings, report_of, to_line
from remoting import background
from remoting.access.users import UserTable

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
"""Pause between two starts of a reader that dies: doubled each time, and the minimum again once one has reported."""
STOP_DEADLINE_S = 5.0
"""How long a reader may take to end before it is killed."""
COMMAND = (sys.executable, "-m", "broker.readers")


class ReaderPool:
    """A fixed number of reader processes that share one port."""

    def __init__(self, count: int, settings: ReaderSettings, metrics: ReaderMetrics, log: Any) -> None:
        self._wanted = count
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._reserved: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._users = b""
        """The line with the users and rules made by requests, once there is one."""
        self._started: set[Process] = set()
        """Processes that have their settings and have not ended."""
        self.processes: dict[int, Process] = {}
        """Number -> the process that serves now."""
        self.changed = asyncio.Condition()
        """Notified whenever `processes` changes."""
        self.port = 0
        metrics.running.function = lambda: len(self.processes)

    def start(self) -> int:
        """Bind the port, begin to start the readers and return the port. Raises OSError when it is taken."""
        assert self._reserved is None
        host = self._settings.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind((host, self._settings.port))
        except OSError as error:
            reserved.close()
            message = f"cannot bind {host}:{self._settings.port} for the readers ({error.strerror or error})"
            raise OSError(error.errno, message) from error
        self._reserved = reserved
        self.port = int(reserved.getsockname()[1])
        self._settings = msgspec.structs.replace(self._settings, port=self.port)
        self._tasks = [
            background.task(self._keep(number), f"keeps reader process {number}") for number in range(self._wanted)
        ]
        return self.port

    @property
    def serving(self) -> bool:
        """Whether any reader listens."""
        return bool(self.processes)

    def use(self, users: UserTable) -> None:
        """Give these users and rules to every reader, now and whenever one starts."""
        self._users = to_line(users)
        for process in self._started:
            _write(process, self._users)

    async def stop(self) -> None:
        """End every reader; one that does not end is killed."""
        self._stopping = True
        for process in self.processes.values():
            _close_input(process)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=STOP_DEADLINE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    async def _keep(self, number: int) -> None:
        """Keep a process of this number running until the pool stops."""
        pause_s = PAUSE_MIN_S
        while not self._stopping:
            try:
                process = await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE)
            except OSError as error:
                self._log.error("range_reader_not_started", number=number, error=str(error))
            else:
                served = await self._watch(number, process)
                pause_s = PAUSE_MIN_S if served else pause_s
            if not self._stopping:
                self._metrics.restarts.value += 1
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _watch(self, number: int, process: Process) -> bool:
        """Read a process's reports until it ends; returns whether it ever listened."""
        served = False
        try:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError, RuntimeError):  # killed at once; uvloop raises RuntimeError
                _write(process, to_line(self._settings) + self._users)
                self._started.add(process)
                await process.stdin.drain()
            served = await self._count(number, process)
            status = await process.wait()
            if not self._stopping:
                self._log.warning("range_reader_ended", number=number, pid=process.pid, status=status)
        finally:
            self._started.discard(process)
            await self._forget(number)
            _close_input(process)
            if process.returncode is None:
                process.kill()
                await process.wait()
        return served

    async def _count(self, number: int, process: Process) -> bool:
        """Add up a process's reports; returns whether it sent any."""
        assert process.stdout is not None
        before, served = ReaderReport(), False
        async for line in process.stdout:
            try:
                report = report_of(line)
            except msgspec.MsgspecError as error:
                self._log.warning("range_reader_report_unreadable", number=number, error=str(error))
                continue
            if not served:
                served = True
                self._log.info("range_reader_started", number=number, pid=process.pid, port=self.port)
                await self._came(number, process)
            self._add(before, report)
            before = report
        return served

    def _add(self, before: ReaderReport, now: ReaderReport) -> None:
        """Add what one process has done between two of its reports."""
        metrics, records, size = self._metrics, now.records - before.records, now.bytes - before.bytes
        metrics.requests.value += now.requests - before.requests
        metrics.bytes.value += size
        metrics.retries.value += now.retries - before.retries
        for reason, count in now.refused.items():
            metrics.refused.child(reason).value += count - before.refused.get(reason, 0)
        for reason, count in now.withheld.items():
            metrics.broker.withheld.child(reason).value += count - before.withheld.get(reason, 0)
        metrics.broker.viewed.value += now.viewed - before.viewed
        metrics.broker.messages_out.value += records
        metrics.broker.bytes_out.value += size

    async def _came(self, number: int, process: Process) -> None:
        async with self.changed:
            self.processes[number] = process
            self.changed.notify_all()
        if self._stopping:
            _close_input(process)

    async def _forget(self, number: int) -> None:
        async with self.changed:
            self.processes.pop(number, None)
            self.changed.notify_all()


def _write(process: Process, data: bytes) -> None:
    """Write to a process, which may have ended."""
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(data)


def _close_input(process: Process) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.close()
