"""The offsets that consumers committed while no master could be reached, in a file beside the log.

    ACTING   one line per commit: CRC-32 as 8 hex digits, a space, JSON [group, topic, queue index, offset], a newline

A replica never writes to its log, so what it acknowledges while it stands in is kept here until a master has it. Per
(group, topic, queue) the largest offset counts. What arrives during one write is the next one; the file is written anew
when most of it is out of date, and removed when a master has everything.

Invariants: a commit is acknowledged after its line is on the disk; a torn last line is dropped, a damaged one is
skipped and counted. At most `ENTRIES_MAX` queues of groups; another one is refused, counted and logged. Loop thread;
the file is written in another thread, one write at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.files import atomic_write, fsync_dir

FILE_NAME = "ACTING"
ENTRIES_MAX = 100_000
"""Queues of groups with an offset in the journal."""
NAMES_BYTES_MAX = 1_024
"""Group and topic of one commit together."""
REWRITE_BYTES = 4 * 1024 * 1024
"""A file of this size is written anew once it has about twice as many lines as entries."""
LINE_BYTES = 64
"""Size of a usual line."""

CommitKey = tuple[str, str, int]
"""(group, topic, queue index)."""
Done = Callable[[Refused | None], None]
"""Called with None once a commit is on the disk, else with why it is not."""


class _CommitLine(msgspec.Struct, array_like=True):
    group: str
    topic: str
    index: int
    offset: int


def encode_line(key: CommitKey, offset: int) -> bytes:
    """One line of the file."""
    content = msgspec.json.encode(_CommitLine(*key, offset))
    return b"%08x %b\n" % (zlib.crc32(content), content)


def decode_lines(data: bytes) -> tuple[dict[CommitKey, int], int]:
    """The largest offset of each key, and how many whole lines are damaged; a last line without its end is dropped."""
    offsets: dict[CommitKey, int] = {}
    damaged = 0
    for line in data.split(b"\n")[:-1]:
        crc, _, content = line.partition(b" ")
        try:
            if int(crc, 16) != zlib.crc32(content):
                damaged += 1
                continue
            found = msgspec.json.decode(content, type=_CommitLine)
        except (ValueError, msgspec.MsgspecError):
            damaged += 1
            continue
        key = found.group, found.topic, found.index
        offsets[key] = max(found.offset, offsets.get(key, 0))
    return offsets, damaged


class CommitJournal:
    """Commits of one replica that its master does not have yet."""

    def __init__(self, directory: Path, log: Any) -> None:
        """Read what is there. Raises OSError."""
        self.refused = 0
        """Commits refused because the journal is full."""
        self._path = directory / FILE_NAME
        self._log = log
        self.offsets: dict[CommitKey, int] = {}
        """What a master has to be told."""
        self._waiting: list[tuple[CommitKey, int, Done]] = []
        self._writing: asyncio.Task[None] | None = None
        self._file = asyncio.Lock()
        self._bytes = 0
        self._is_torn = False
        with contextlib.suppress(FileNotFoundError):
            data = self._path.read_bytes()
            self.offsets, damaged = decode_lines(data)
            if damaged:
                log.error("acting_journal_damaged", file=str(self._path), lines=damaged)
            self._bytes = len(data)
            if damaged or not data.endswith(b"\n"):
                self._rewrite(self.offsets)

    def add(self, key: CommitKey, offset: int, done: Done) -> None:
        """Keep a commit; `done` is called when it is on the disk. Raises Refused when there is no room for it."""
        if len(key[0]) + len(key[1]) > NAMES_BYTES_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"group and topic exceed {NAMES_BYTES_MAX} characters")
        if key not in self.offsets and len(self.offsets) + len(self._waiting) >= ENTRIES_MAX:
            self.refused += 1
            if self.refused == 1:
                self._log.warning("acting_journal_full", entries=ENTRIES_MAX)
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"offsets of {ENTRIES_MAX} queues wait for a master already: commit again when there is one",
            )
        self._waiting.append((key, offset, done))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def handed_over(self, offsets: Mapping[CommitKey, int]) -> None:
        """A master has these: forget what has not grown since. Raises OSError."""
        async with self._file:
            left = {key: at for key, at in self.offsets.items() if at > offsets.get(key, -1)}
            await asyncio.get_running_loop().run_in_executor(None, self._rewrite, left)
            self.offsets = left

    async def _write(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                error: Refused | None = None
                async with self._file:
                    try:
                        await self._store(b"".join(encode_line(key, offset) for key, offset, _done in taken))
                    except OSError as failure:
                        self._is_torn = True
                        self._log.error("acting_journal_not_written", file=str(self._path), error=str(failure))
                        error = Refused(ResponseCode.SYSTEM_ERROR, f"the offset is not on disk: {failure}")
                    else:
                        for key, offset, _done in taken:
                            self.offsets[key] = max(offset, self.offsets.get(key, 0))
                for _key, _offset, done in taken:
                    done(error)
        finally:
            self._writing = None

    async def _store(self, data: bytes) -> None:
        loop, entries = asyncio.get_running_loop(), dict(self.offsets)
        # A line behind a torn one would be damaged with it.
        if self._is_torn or (self._bytes > REWRITE_BYTES and self._bytes > 2 * LINE_BYTES * len(entries)):
            await loop.run_in_executor(None, self._rewrite, entries)
        await loop.run_in_executor(None, self._append, data)

    def _append(self, data: bytes) -> None:
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._bytes = file.tell()
        if is_new:
            fsync_dir(self._path.parent)

    def _rewrite(self, entries: Mapping[CommitKey, int]) -> None:
        lines = [encode_line(key, offset) for key, offset in entries.items()]
        if lines:
            atomic_write(self._path, lines)
        else:
            self._path.unlink(missing_ok=True)
            fsync_dir(self._path.parent)
        self._bytes, self._is_torn = sum(map(len, lines)), False
