"""Brings the state to disk soon after it changed, many changes in one write, and tells who waits when it is there.

Invariant: `durable()` returns only when everything applied before the call is on disk. A write that fails is tried
again for as long as the controller runs; who waits is told at once.
Loop rule: the state is encoded on the loop, the file written in a thread.
"""

from __future__ import annotations

import asyncio

from controller.name_server.metadata_file import MetadataFile, encode_metadata
from controller.name_server.state import State
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.logs import get_logger

RETRY_SECONDS = 1.0
"""Pause after a write that failed."""


class Persister:
    """Writes one state to one file."""

    def __init__(self, state: State, file: MetadataFile, pause_ms: int) -> None:
        self._state = state
        self._file = file
        self._pause_seconds = pause_ms / 1000
        self._changed = asyncio.Event()
        self._written = state.revision
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger("controller")
        self.writes = 0
        self.failures = 0

    async def start(self) -> None:
        """Begin to write changes."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write what is not written yet."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._written != self._state.revision:
            await self._write()

    def changed(self) -> None:
        """The state may have changed."""
        if self._written != self._state.revision:
            self._changed.set()

    def has(self, revision: int) -> bool:
        """Whether the state of this revision is on disk."""
        return self._written >= revision

    async def durable(self) -> None:
        """Wait until the state as it is now is on disk; `Refused` when it cannot be written."""
        revision = self._state.revision
        if self._written >= revision:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, future))
        self._changed.set()
        await future

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._written == self._state.revision:
                continue  # the write before took this change along
            if await self._write():
                await asyncio.sleep(self._pause_seconds)
            else:
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _write(self) -> bool:
        revision = self._state.revision
        data = encode_metadata(self._state.metadata)
        try:
            await asyncio.to_thread(self._file.save, data)
        except OSError as error:
            self.failures += 1
            self._log.error("metadata_not_written", file=str(self._file.path), error=str(error))
            refusal = Refused(ResponseCode.SYSTEM_ERROR, f"the change is not on disk yet: {error}")
            for future in self._done_waiting(self._state.revision):
                future.set_exception(refusal)
            return False
        self.writes += 1
        self._written = revision
        for future in self._done_waiting(revision):
            future.set_result(None)
        return True

    def _done_waiting(self, revision: int) -> list[asyncio.Future[None]]:
        """Take out those who wait for this revision or an earlier one and are still there."""
        done = [future for wanted, future in self._waiting if wanted <= revision and not future.done()]
        self._waiting = [(wanted, future) for wanted, future in self._waiting if wanted > revision]
        return done
