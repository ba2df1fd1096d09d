"""The controller's metadata on disk: one JSON file, replaced atomically.

    {"format": 1, "metadata": {"groups": {...}, "topics": {...}, "key_values": {...}}}

Invariant: the file is whole at every instant, the old content or the new. Reading and writing block.

`Persister` writes the state soon after it changed, many changes in one write, and wakes who waits for that.

Invariant: `durable()` returns only when everything applied before the call is on disk. A write that fails is tried
again for as long as the controller runs; who waits fails at once.
Loop rule: the state is encoded on the loop, the file written in a thread.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from controller.name_server.state import Metadata, MetadataState
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.files import atomic_replace
from runtime.logs import get_logger

FORMAT = 1
FILE_NAME = "metadata.json"


class _Content(msgspec.Struct):
    format: int
    metadata: msgspec.Raw


class MetadataFile:
    """The file of one data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def load(self) -> Metadata:
        """What was stored last, or empty metadata; LocalMisuse says what is wrong with the file and what to do."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Metadata()
        try:
            content = msgspec.json.decode(data, type=_Content)
            if content.format == FORMAT:
                return msgspec.json.decode(content.metadata, type=Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LocalMisuse(
                f"{self.path} is damaged ({error}): put back a copy, or move it away - brokers register again by "
                f"themselves, only key-value entries and withdrawn write permissions are lost"
            ) from error
        raise LocalMisuse(
            f"{self.path} has format {content.format}, this version reads {FORMAT}: use the version that wrote it"
        )

    def save(self, data: bytes) -> None:
        """Replace the file's content durably. Raises OSError."""
        atomic_replace(self.path, data)


def encode_metadata(metadata: Metadata) -> bytes:
    """The file's content."""
    return msgspec.json.encode(_Content(FORMAT, msgspec.Raw(msgspec.json.encode(metadata))))


RETRY_SECONDS = 1.0
"""Pause after a write that failed."""


class Persister:
    """Writes one state to one file."""

    def __init__(self, state: MetadataState, file: MetadataFile, pause_ms: int) -> None:
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
