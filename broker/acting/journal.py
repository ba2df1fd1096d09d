"""What an acting replica has acknowledged and no master has yet, in a file beside the log.

    ACTING   one line per entry: CRC-32 as 8 hex digits, a space, JSON [kind, key..., value...], a newline

A replica never writes to its log, so what it acknowledges while it stands in is kept here until a master has it. Of the
values under one key, the kind says which counts (`kinds`). What arrives during one write is the next one; the file is
written anew when most of it is out of date, and removed when a master has everything.

Invariants: an entry is acknowledged after its line is on the disk; a torn last line is dropped, a damaged one is
skipped and counted. At most `ENTRIES_MAX` keys; another one is refused, counted and logged. Loop thread;
the file is written in another thread, one write at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from broker.acting.kinds import KINDS, EntryKind, Key, Value
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from runtime.files import atomic_write, fsync_dir

FILE_NAME = "ACTING"
ENTRIES_MAX = 100_000
"""Keys in the journal, of all kinds."""
LINE_BYTES_MAX = 1_200
"""Longest line: names in it have about a thousand bytes together."""
REWRITE_BYTES = 4 * 1024 * 1024
"""A file of this size is written anew once it has about twice as many lines as entries."""
SMALL_ENTRIES = 10_000
"""A file with fewer entries is written anew whenever a master took some."""
LINE_BYTES = 64
"""Size of a usual line."""

Entries = dict[str, dict[Key, Value]]
"""Name of a kind -> key -> value."""
Entry = tuple[EntryKind, Key, Value]
Done = Callable[[Refused | None], None]
"""Called with None once an entry is on the disk, else with why it is not."""


def encode_line(kind: EntryKind, key: Key, value: Value) -> bytes:
    """One line of the file."""
    content = msgspec.json.encode((kind.name, *key, *value))
    return b"%08x %b\n" % (zlib.crc32(content), content)


def decode_lines(data: bytes) -> tuple[Entries, int]:
    """What counts of each key, and how many whole lines are damaged; a last line without its end is dropped."""
    entries: Entries = {name: {} for name in KINDS}
    damaged = 0
    for line in data.split(b"\n")[:-1]:
        crc, _, content = line.partition(b" ")
        try:
            if int(crc, 16) != zlib.crc32(content):
                damaged += 1
                continue
            name, *item = msgspec.json.decode(content, type=list[Any])
            kind = KINDS[name]
            key, value = kind.split(msgspec.convert(item, kind.item))
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
            damaged += 1
            continue
        _keep(kind, entries[kind.name], key, value)
    return entries, damaged


def _keep(kind: EntryKind, entries: dict[Key, Value], key: Key, value: Value) -> None:
    known = entries.get(key)
    entries[key] = value if known is None else kind.keep(known, value)


class ActingJournal:
    """What one replica has acknowledged and its master does not have yet."""

    def __init__(self, directory: Path, log: Any) -> None:
        """Read what is there. Raises OSError."""
        self.refused = 0
        """Entries refused because the journal is full."""
        self.parts_taken = 0
        """How often a master took some: entries are gone since."""
        self.added = asyncio.Event()
        """Set when there is something for a master; whoever hands it over clears it."""
        self._path = directory / FILE_NAME
        self._log = log
        self._entries: Entries = {name: {} for name in KINDS}
        self._waiting: list[tuple[EntryKind, Key, Value, bytes, Done]] = []
        self._promised: dict[tuple[str, Key], list[Value]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._file = asyncio.Lock()
        self._bytes = 0
        self._is_torn = False
        with contextlib.suppress(FileNotFoundError):
            data = self._path.read_bytes()
            self._entries, damaged = decode_lines(data)
            if damaged:
                log.error("acting_journal_damaged", file=str(self._path), lines=damaged)
            self._bytes = len(data)
            if damaged or not data.endswith(b"\n"):
                self._rewrite(self._entries)
        if len(self):
            self.added.set()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    @property
    def room(self) -> int:
        """How many keys more it can have."""
        return max(0, ENTRIES_MAX - len(self) - len(self._promised))

    def of(self, kind: EntryKind) -> Mapping[Key, Value]:
        """What a master has to be told of this kind."""
        return self._entries[kind.name]

    def get(self, kind: EntryKind, key: Key) -> Value | None:
        """What is kept under a key, or about to be: it may be on its way to the disk yet."""
        found = self._entries[kind.name].get(key)
        for value in self._promised.get((kind.name, key), ()):
            found = value if found is None else kind.keep(found, value)
        return found

    def add(self, kind: EntryKind, key: Key, value: Value, done: Done) -> None:
        """Keep an entry; `done` is called when it is on the disk. Raises Refused when there is no room for it."""
        line = encode_line(kind, key, value)
        if len(line) > LINE_BYTES_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the names in it exceed {LINE_BYTES_MAX} bytes")
        if key not in self.of(kind) and not self.room:
            raise self.full()
        self._waiting.append((kind, key, value, line, done))
        self._promised.setdefault((kind.name, key), []).append(value)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def add_all(self, entries: Iterable[Entry], done: Done) -> None:
        """Keep several entries; `done` is called once, when all of them are on the disk or some are refused."""
        waiting, refused = 1, list[Refused]()

        def settled(error: Refused | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                refused.append(error)
            if not waiting:
                done(refused[0] if refused else None)

        for kind, key, value in entries:
            waiting += 1
            try:
                self.add(kind, key, value, settled)
            except Refused as error:
                settled(error)
        settled(None)

    def full(self) -> Refused:
        """The refusal of what there is no room for, counted."""
        self.refused += 1
        if self.refused == 1:
            self._log.warning("acting_journal_full", entries=ENTRIES_MAX)
        remark = f"{ENTRIES_MAX} entries wait for a master already, or may have to: try again when there is one"
        return Refused(ResponseCode.SYSTEM_BUSY, remark)

    async def handed_over(self, kind: EntryKind, part: Mapping[Key, Value]) -> None:
        """A master has these: forget what has not changed since. Raises OSError, and nothing is forgotten then.

        A large file has them for some time yet: a master that is told once more changes nothing.
        """
        async with self._file:
            entries = self._entries[kind.name]
            taken = [key for key, value in part.items() if entries.get(key) == value]
            for key in taken:
                del entries[key]
            try:
                if len(self) < SMALL_ENTRIES or self._is_out_of_date:
                    await asyncio.get_running_loop().run_in_executor(None, self._rewrite, self._copy())
            except OSError:
                entries |= {key: part[key] for key in taken}
                raise
        self.parts_taken += 1

    async def _write(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                error: Refused | None = None
                async with self._file:
                    try:
                        await self._store(b"".join(line for _kind, _key, _value, line, _done in taken))
                    except OSError as failure:
                        self._is_torn = True
                        self._log.error("acting_journal_not_written", file=str(self._path), error=str(failure))
                        error = Refused(ResponseCode.SYSTEM_ERROR, f"it is not on disk: {failure}")
                    self._settle(taken, is_kept=error is None)
                for *_entry, done in taken:
                    done(error)
        finally:
            self._writing = None

    def _settle(self, taken: list[tuple[EntryKind, Key, Value, bytes, Done]], *, is_kept: bool) -> None:
        """What was promised is kept, or not."""
        for kind, key, value, _line, _done in taken:
            promised = self._promised[kind.name, key]
            promised.remove(value)
            if not promised:
                del self._promised[kind.name, key]
            if is_kept:
                _keep(kind, self._entries[kind.name], key, value)
        if is_kept:
            self.added.set()

    async def _store(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        # A line behind a torn one would be damaged with it.
        if self._is_torn or self._is_out_of_date:
            await loop.run_in_executor(None, self._rewrite, self._copy())
        await loop.run_in_executor(None, self._append, data)

    @property
    def _is_out_of_date(self) -> bool:
        return self._bytes > REWRITE_BYTES and self._bytes > 2 * LINE_BYTES * len(self)

    def _copy(self) -> Entries:
        """What another thread may read."""
        return {name: dict(each) for name, each in self._entries.items()}

    def _append(self, data: bytes) -> None:
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._bytes = file.tell()
        if is_new:
            fsync_dir(self._path.parent)

    def _rewrite(self, entries: Entries) -> None:
        lines = [encode_line(KINDS[name], key, value) for name, each in entries.items() for key, value in each.items()]
        if lines:
            atomic_write(self._path, lines)
        else:
            self._path.unlink(missing_ok=True)
            fsync_dir(self._path.parent)
        self._bytes, self._is_torn = sum(map(len, lines)), False


def warn_of_entries_left(directory: Path, log: Any) -> None:
    """Say how many entries no master will get, as this broker does not hand them over. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        entries, _damaged = decode_lines((directory / FILE_NAME).read_bytes())
        log.warning(
            "acting_entries_left", file=str(directory / FILE_NAME), entries=sum(map(len, entries.values())),
            consequence="no master has them: start this broker once as a replica with replication.acting_master",
        )  # fmt: skip
