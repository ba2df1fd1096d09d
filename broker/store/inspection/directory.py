"""The parts of a data directory, opened for reading in the order that makes them comparable.

Invariant: everything that promises something about the log (durable positions, snapshot, runs) is read before the log
files are listed, so a live broker can only have more in the log than was promised. Nothing is created or changed.
Walks yield only records whose position, sizes, checksum and epoch hold, in order, and report where they stopped. The
search behind damage is this room's own, so that the store's is compared with it. Files are mapped at construction, so
one that a live broker drops later stays readable. The key index is sound when each run holds exactly the keys of the
records in its part of the log, with their positions, sizes and times, and the runs cover the log to where the MANIFEST
says; comparing takes 20 bytes of memory per key of the log. Thread rule: one thread.
"""

from __future__ import annotations

import fcntl
import mmap
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TypeVar

from broker.store.errors import CorruptIndex, StoreError
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.run import Manifest, Run, load_manifest, run_path
from broker.store.index.tail import read_durable
from broker.store.keys.key_index import DIRECTORY as KEYS
from broker.store.keys.key_index import Columns, KeyManifest, KeyRun, key_run_path, load_key_manifest, sort_keys
from broker.store.log.commit_log import list_segments
from broker.store.log.metadata import Checkpoint, Mark, load_checkpoint, load_mark
from broker.store.recovery.log_end import DamagedRange, Quarantine, Scan, load_quarantine
from broker.store.state.state_tables import Snapshot, load_snapshot
from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.native.vectors import Column, joined, nonzero
from remoting.protocol.errors import CorruptRecord, LocalMisuse
from remoting.protocol.records.record import DISPATCH_SIZE, FILLER, HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK, check_record
from runtime.files import LOCK_NAME

Header = tuple[int, ...]
_LETTERS, _LETTERS_AT = b"QML", 5
"""What every record's magic has in common, and where in the record it stands."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One mapped file that starts at position `base`."""

    path: Path
    base: int
    view: memoryview
    data: mmap.mmap | bytes

    @property
    def end(self) -> int:
        """Position behind its last byte."""
        return self.base + len(self.view)


class LogFiles:
    """All files of `directory` (the folder `log` of a data directory), oldest first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = [file for path in list_segments(directory) if (file := _map(path)) is not None]
        self._bases = [file.base for file in self.files]

    @property
    def begin(self) -> int:
        """Position of the oldest byte."""
        return self._bases[0] if self._bases else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(file.view) for file in self.files)

    def file_at(self, position: int) -> LogFile | None:
        """Return the file that holds `position`."""
        at = bisect_right(self._bases, position) - 1
        return self.files[at] if at >= 0 and position < self.files[at].end else None

    def next_sound(self, position: int, epoch: int) -> int:
        """Return where the next sound record behind the failing one at `position` stands, 0 when there is none.

        Where its own sizes lead, if they are consistent; else the first place with the magic of a record.
        """
        for file in self.files:
            if file.end <= position:
                continue
            at = max(0, position - file.base)
            if file.base <= position and (own := _end_by_sizes(file, at)) and _sound(file, own, epoch):
                return file.base + own
            while (found := file.data.find(_LETTERS, at + _LETTERS_AT + 1)) >= 0:
                at = found - _LETTERS_AT
                if at % 8 == 0 and file.base + at > position and _sound(file, at, epoch):
                    return file.base + at
        return 0

    def record_start(self, position: int) -> int:
        """Return where the first record at or behind `position` starts, by the sizes in its file alone."""
        file = self.file_at(position)
        if file is None:
            return max(position, self.begin)
        at = 0
        while file.base + at < position and at + HEADER_SIZE <= len(file.view):
            size = HEADER.unpack_from(file.view, at)[0]
            if size < HEADER_SIZE:
                break
            at += size
        return file.base + at


class Stretches:
    """One pass with every check: the parts of files that hold nothing but sound records, around damage.

    After a failing record below `durable` it continues at the next sound one; `known` damage may lie anywhere. `scan`
    and `damage` (start, end, reason) are set once the iteration has ended.
    """

    def __init__(self, files: LogFiles, start: int, durable: int = 0, known: Iterable[DamagedRange] = ()) -> None:
        self._files = files
        self._durable = durable
        self._known = Quarantine(known)
        self.scan = Scan(start, start, "", 0, 0, 0)
        self.damage: list[tuple[int, int, str]] = []

    def __iter__(self) -> Iterator[tuple[LogFile, int, int]]:
        """Yield (file, first position, end position) in order."""
        start = self.scan.records_end
        seen = Progress(start, start, 0, 0, 0, group_open=False)
        while True:
            while not seen.reason and (file := self._files.file_at(seen.position)) is not None:
                first = seen.position
                seen = native.core.scan(file.view, file.base, len(file.view), seen)
                if seen.position > first:
                    yield file, first, seen.position
            behind = self._behind(seen)
            if not behind:
                break
            self.damage.append((seen.position, behind, seen.reason or "the log ends there"))
            seen = Progress(behind, behind, seen.epoch, seen.store_ms, seen.records, group_open=False)
        self.scan = Scan(seen.position, seen.groups_end, seen.reason, seen.epoch, seen.store_ms, seen.records)

    def _behind(self, seen: Progress) -> int:
        """Return where to continue after the failing record, 0 when the log ends with it."""
        known = self._known.at(seen.position)
        if known is not None:
            return known.end
        if seen.position >= self._durable:
            return 0
        return self._files.next_sound(seen.position, seen.epoch) or self._durable


class Walk:
    """One walk over the records from `start` on; `scan` has the result once the iteration has ended."""

    def __init__(self, files: LogFiles, start: int, durable: int = 0, known: Iterable[DamagedRange] = ()) -> None:
        self._stretches = Stretches(files, start, durable, known)

    @property
    def scan(self) -> Scan:
        """Where the log ends and why."""
        return self._stretches.scan

    @property
    def damage(self) -> list[tuple[int, int, str]]:
        """The stretches (start, end, reason) left out so far."""
        return self._stretches.damage

    def __iter__(self) -> Iterator[tuple[LogFile, int, Header]]:
        """Yield (file, offset in it, header fields) of each record, fillers left out."""
        for file, first, end in self._stretches:
            at = first - file.base
            while at < end - file.base:
                head = HEADER.unpack_from(file.view, at)
                if head[1] != FILLER:
                    yield file, at, head
                at += head[0]


def _map(path: Path) -> LogFile | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError:  # a live broker has just dropped it
        return None
    return LogFile(path, int(path.name), memoryview(data), data)


def _end_by_sizes(file: LogFile, at: int) -> int:
    """Return where in the file the record at `at` ends when its sizes hold together, 0 otherwise."""
    if at + HEADER_SIZE > len(file.view):
        return 0
    head = HEADER.unpack_from(file.view, at)
    meta_end = HEADER_SIZE + DISPATCH_SIZE * head[11] + 4 * head[12] + sum(head[13:17])
    sane = head[8] - meta_end in range(8) and head[0] - head[8] - head[7] in range(8) and head[0] % 8 == 0
    return at + int(head[0]) if sane and head[4] == file.base + at and head[1] & MAGIC_MASK == MAGIC else 0


def _sound(file: LogFile, at: int, epoch: int) -> bool:
    try:
        check_record(file.view, at, file.base + at)
    except CorruptRecord:
        return False
    return bool(HEADER.unpack_from(file.view, at)[3] >= epoch)


CHUNK_ENTRIES = 1 << 18
DIFFERENCES_MAX = 20
"""Differences named per run; the first ones are enough to see what happened."""
OPEN_ATTEMPTS_MAX = 5
"""How often runs are opened again when a live broker has merged them meanwhile."""


@dataclass(slots=True)
class KeyFiles:
    """What the MANIFEST names; without a key index, nothing."""

    directory: Path
    manifest: KeyManifest = field(default_factory=KeyManifest)
    runs: list[KeyRun] = field(default_factory=list)


def open_key_files(directory: Path, unreadable: list[CorruptIndex]) -> KeyFiles:
    """Open what is in `directory`; what fails its checks goes to `unreadable`."""
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            manifest = load_key_manifest(directory) or KeyManifest()
            return KeyFiles(directory, manifest, [KeyRun(key_run_path(directory, number)) for number in manifest.runs])
        except (CorruptIndex, FileNotFoundError) as error:
            if attempt == OPEN_ATTEMPTS_MAX - 1:
                unreadable.append(error if isinstance(error, CorruptIndex) else CorruptIndex(directory, str(error)))
    return KeyFiles(directory)


class LogKeys:
    """Every key of the log, taken in stretch by stretch in log order."""

    def __init__(self, files: KeyFiles) -> None:
        self._wanted = files.manifest.end_position > 0
        self._chunks = [native.core.make_key_chunk(CHUNK_ENTRIES if self._wanted else 64)]
        self._joined: Columns | None = None

    def add(self, view: memoryview, base: int, first: int, end: int) -> None:
        """Take in the sound records in [first, end) log positions of `view`, which begins at `base`."""
        self._joined = None
        while self._wanted and (first := self._chunks[-1].take(view, base, first, end)) < end:
            self._chunks.append(native.core.make_key_chunk(CHUNK_ENTRIES))

    def part(self, start: int, end: int) -> Columns:
        """Return the entries of the records in [start, end), as a run holds them."""
        if self._joined is None:
            parts = [chunk.columns() for chunk in self._chunks]
            self._joined = _each(lambda at: joined([part[at] for part in parts]))
        known = self._joined
        first, behind = known[1].searchsorted(start), known[1].searchsorted(end)
        return sort_keys([_each(lambda at: known[at][first:behind])])


def different_rows(said: Sequence[Column], meant: Sequence[Column]) -> Column:
    """Return the rows in which any column of one length differs from the other's."""
    wrong = [one != other for one, other in zip(said, meant, strict=True)]
    return nonzero(reduce(operator.or_, wrong))


def _each(make: Callable[[int], Column]) -> Columns:
    return make(0), make(1), make(2), make(3)


def check_keys(
    files: KeyFiles, keys: LogKeys, begin: int, gaps: Sequence[tuple[int, int]] = ()
) -> Iterator[tuple[Path, str]]:
    """Yield (file, how it differs from the log), which begins at `begin` and is damaged in `gaps`."""
    at = begin
    for run in files.runs:
        if missing := _missing(keys, at, run.first_position, gaps):
            yield run.path, f"{missing} keys between {at} and {run.first_position}, where {run.path.name} begins"
        at = max(at, run.end_position)
        try:
            for text in _check_run(run, keys, begin, gaps):
                yield run.path, text
        except CorruptIndex as error:
            yield error.path, error.reason
    end = max(files.manifest.end_position, begin)
    if at > end:
        yield files.directory, f"the runs end at {at}, the manifest says {end}"
    if missing := _missing(keys, at, end, gaps):
        yield files.directory, f"{missing} keys between {at} and {end}, where the manifest says that the runs end"


def _missing(keys: LogKeys, start: int, end: int, gaps: Sequence[tuple[int, int]]) -> int:
    """Return how many keys the log has where no run is: none, because a stretch without keys needs no run."""
    return len(_outside(keys.part(start, end), start, gaps)[0]) if start < end else 0


def _outside(columns: Columns, begin: int, gaps: Sequence[tuple[int, int]]) -> Columns:
    """Return the entries of the log from `begin` on (older ones have expired) that are not in damage."""
    kept = columns[1] >= begin
    for start, end in gaps:
        kept &= (columns[1] < start) | (columns[1] >= end)
    return _each(lambda at: columns[at][kept])


def _check_run(run: KeyRun, keys: LogKeys, begin: int, gaps: Sequence[tuple[int, int]]) -> Iterator[str]:
    said = run.columns()
    meant = keys.part(max(run.first_position, begin), run.end_position)
    shown, meant = (_outside(columns, begin, gaps) for columns in (said, meant))
    if len(shown[0]) != len(meant[0]):
        yield f"{run.path.name}: {len(shown[0])} keys where the log has {len(meant[0])}"
        return
    wrong = different_rows(shown, meant)
    for at in wrong[:DIFFERENCES_MAX].tolist():
        names = ("number", "position", "size", "second")
        pairs = [f"{name} {a[at]}/{b[at]}" for name, a, b in zip(names, shown, meant, strict=True)]
        yield f"{run.path.name}: index/log say {', '.join(pairs)}"


Loaded = TypeVar("Loaded")


class NoDataDirectory(LocalMisuse):
    """There is no log at the path."""


@dataclass(slots=True)
class DataDirectory:
    """What was found; `unreadable` are files that the log can replace but that fail their checks."""

    path: Path
    owner_pid: int | None
    checkpoint: Checkpoint | None
    mark: Mark | None
    snapshot: Snapshot | None
    manifest: Manifest
    runs: list[Run]
    keys: KeyFiles
    durable: int
    files: LogFiles
    quarantine: Quarantine
    unreadable: list[CorruptIndex] = field(default_factory=list)


def locate(path: Path) -> Path:
    """Return the data directory of the store at `path`: itself, or the broker's part of an installation.

    Raises NoDataDirectory.
    """
    for candidate in (path, path / "broker"):
        if (candidate / "log").is_dir():
            return candidate
    raise NoDataDirectory(f"{path}: there is no data directory of a broker, neither there nor in {path / 'broker'}")


def open_directory(path: Path) -> DataDirectory:
    """Open everything in `path` read-only. Raises NoDataDirectory, OSError."""
    path = locate(path)
    unreadable: list[CorruptIndex] = []
    checkpoint = _load(lambda: load_checkpoint(path), unreadable)
    snapshot = _load(lambda: load_snapshot(path / "state"), unreadable)
    mark = _load(lambda: load_mark(path), unreadable)
    quarantine = _load(lambda: load_quarantine(path), unreadable) or Quarantine()
    manifest, runs = _open_runs(path / "index", unreadable)
    keys = open_key_files(path / KEYS, unreadable)
    durable = max(
        checkpoint.position if checkpoint else 0,
        mark.position if mark else 0,
        snapshot.position if snapshot else 0,
        manifest.end_position,
        read_durable(path / "index" / TAIL_NAME),
    )
    files = LogFiles(path / "log")
    return DataDirectory(
        path, owner_of(path), checkpoint, mark, snapshot, manifest, runs, keys, durable, files, quarantine, unreadable
    )  # fmt: skip


def owner_of(path: Path) -> int | None:
    """Return the process that holds the directory's lock (0: not known), None when it is free."""
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def _load(load: Callable[[], Loaded | None], unreadable: list[CorruptIndex]) -> Loaded | None:
    try:
        return load()
    except CorruptIndex as error:
        unreadable.append(error)
        return None


def _open_runs(directory: Path, unreadable: list[CorruptIndex]) -> tuple[Manifest, list[Run]]:
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            manifest = load_manifest(directory) or Manifest()
            return manifest, [Run(run_path(directory, file_id)) for file_id in manifest.runs]
        except (StoreError, FileNotFoundError) as error:
            if attempt == OPEN_ATTEMPTS_MAX - 1:
                unreadable.append(error if isinstance(error, CorruptIndex) else CorruptIndex(directory, str(error)))
    return Manifest(), []
