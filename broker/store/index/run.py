"""The durable files of the index: immutable, sorted, columnar runs, and the MANIFEST that names the live ones.

    index/run-<10-digit id>
       0 magic "LMQRUN02" | 8 id u64 | 16 level u32 | 20 queues n u32 | 24 entries m u64
      32 first position i64 | 40 end position i64 | 48 flags u32 | 52 directory crc32c u32 | 56 columns crc32c u32
      60 zeros to 64
      64 first_offset i64[n] | next_offset i64[n] | start u32[n + 1] | qid u32[n] | pad to 8
         position i64[m] | size u32[m] | tag_hash u32[m] | with flag 1: queue_offset i64[m]
    index/MANIFEST             one sealed line of JSON: next_file_id, end_position, offsets_id, runs (ids, oldest first)
                               and confirmed_position where the runs hold more than the group had confirmed
    index/offsets-<10 digits>  magic "LMQOFFS1" | count u64 | next_offset i64[count] | crc32c u32

Entries are sorted by (qid, queue offset); start[i] is where queue qid[i] begins. Without flag 1 every entry holds one
message and offsets count up from first_offset; with it an entry holds the messages up to the next entry's offset, the
queue's last one those up to next_offset. The directory checksum covers bytes [0, 52) and the directory; it is checked
at every open, that of the columns by `verify` and before a merge. The offsets file holds each queue's next offset as of
`end_position`, because queues whose records have all expired are in no run.

Invariant: a run covers every entry of the log in [first position, end position) and is never changed after its rename;
a file gets its name only when every byte of it is on the disk, and the MANIFEST only after the files it names. File ids
are never used twice. Everything in the log below the MANIFEST's `end_position` (and above its begin) is in the named
runs. Runs take what is confirmed, and more only when the tail has no room for the rest; a start hides that again.
Thread rule: runs and values on any thread; saving blocks and belongs to the index thread.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.log.metadata import open_sealed_json, sealed_json
from remoting.native import core as native
from remoting.native.checksum import crc32c
from remoting.native.contracts import EntryBlock, RunData
from remoting.native.vectors import Column, arange, argsort, diff, empty, joined, maximum, repeat, view
from runtime.files import atomic_replace, fsync_dir


@dataclass(slots=True)
class Entries:
    """First queue offset, log position, record size in bytes (0: a hole) and tag hash of consecutive entries."""

    offsets: Column
    positions: Column
    sizes: Column
    tags: Column
    end: int

    @staticmethod
    def empty(offset: int = 0) -> Entries:
        """No entries, at `offset`."""
        return Entries(*_NOTHING, offset)

    @staticmethod
    def joined(parts: list[Entries], offset: int = 0) -> Entries:
        """One stretch from neighbouring ones; `offset` is where it begins if there are none."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Entries.empty(offset)
        return Entries(
            joined([part.offsets for part in parts]),
            joined([part.positions for part in parts]),
            joined([part.sizes for part in parts]),
            joined([part.tags for part in parts]),
            parts[-1].end,
        )

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def dense(self) -> bool:
        """Whether every entry holds one message."""
        return not len(self.offsets) or self.end - self.offsets[0] == len(self.offsets)


_NOTHING = (empty(0, "q"), empty(0, "q"), empty(0, "I"), empty(0, "I"))


MAGIC = b"LMQRUN02"
HEAD = struct.Struct("<8sQIIQqqI")
SUMS = struct.Struct("<II")
HEAD_BYTES = 64
FLAG_OFFSETS = 1
"""The run has a column of queue offsets."""
Columns = tuple[Column, ...]


def map_run(path: Path) -> mmap.mmap:
    """Return the file of a run, of queues or of keys, mapped read-only. Raises CorruptIndex without a head, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEAD_BYTES:
            raise CorruptIndex(path, f"{size} bytes are too few for a run")
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


class Run:
    """A mapped run file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = map_run(path)
        size = len(data)
        magic, self.file_id, self.level, n, m, self.first_position, self.end_position, flags = HEAD.unpack_from(data, 0)
        directory_sum, self._columns_sum = SUMS.unpack_from(data, HEAD.size)
        at = columns_at(n)
        if magic != MAGIC or flags & ~FLAG_OFFSETS or size != at + (24 if flags else 16) * m:
            raise CorruptIndex(path, f"no run of {n} queues and {m} entries in {size} bytes")
        whole = memoryview(data)
        if crc32c(whole[HEAD_BYTES:at], crc32c(whole[: HEAD.size])) != directory_sum:
            raise CorruptIndex(path, "the checksum of its directory does not match")
        self._columns = whole[at:]
        self.entry_count = m
        self.first_offsets = view(data, "q", n, HEAD_BYTES)
        self.next_offsets = view(data, "q", n, HEAD_BYTES + 8 * n)
        """For each of `queues`, the offset behind its last entry here."""
        self.starts = view(data, "I", n + 1, HEAD_BYTES + 16 * n)
        self.queues = view(data, "I", n, HEAD_BYTES + 20 * n + 4)
        self.positions = view(data, "q", m, at)
        self.sizes = view(data, "I", m, at + 8 * m)
        self.tags = view(data, "I", m, at + 12 * m)
        self.offsets = view(data, "q", m, at + 16 * m) if flags else None
        """Queue offset of every entry; None when each is one more than the one before."""

    def counts(self) -> Column:
        """Return how many entries each of `queues` has."""
        return diff(self.starts)

    def offset_column(self) -> Column:
        """Return the queue offset of every entry."""
        if self.offsets is not None:
            return self.offsets
        return repeat(self.first_offsets - self.starts[:-1], self.counts()) + arange(0, self.entry_count)

    def columns(self) -> Columns:
        """Return (qid, offset, position, size, tag) of all entries, sorted by (qid, offset). Raises CorruptIndex."""
        self.check()
        return repeat(self.queues, self.counts()), self.offset_column(), self.positions, self.sizes, self.tags

    def check(self) -> None:
        """Check the columns, and that the directory means them, entry for entry. Raises CorruptIndex."""
        self.verify()
        counts = self.counts()
        dense = self.offsets is not None or (self.next_offsets - self.first_offsets == counts).all()
        whole = self.starts[0] == 0 and self.starts[-1] == self.entry_count and (counts > 0).all()
        if not whole or not dense or (self.queues[1:] <= self.queues[:-1]).any():
            raise CorruptIndex(self.path, "its directory does not add up")

    def verify(self) -> None:
        """Check the columns. Raises CorruptIndex."""
        if crc32c(self._columns) != self._columns_sum:
            raise CorruptIndex(self.path, "the checksum of its columns does not match")


def run_path(directory: Path, file_id: int) -> Path:
    """Return the file of run `file_id`."""
    return directory / f"run-{file_id:010d}"


def columns_at(queue_count: int) -> int:
    """Where the columns of a run with so many queues begin."""
    return (HEAD_BYTES + 24 * queue_count + 4 + 7) & ~7


def write_run(path: Path, file_id: int, level: int, bounds: tuple[int, int], data: RunData) -> None:
    """Write one run durably under a temporary name, rename it, and make that durable before a MANIFEST names it.

    `bounds` are the log positions covered. Raises OSError.
    """
    n, m = len(data.queues), len(data.positions)
    flags = 0 if data.offsets is None else FLAG_OFFSETS
    directory = _bytes([
        (data.first_offsets, "q"), (data.next_offsets, "q"), (data.starts, "I"), (data.queues, "I"),
    ])  # fmt: skip
    directory.append(bytes(columns_at(n) - HEAD_BYTES - 24 * n - 4))
    columns = _bytes([(data.positions, "q"), (data.sizes, "I"), (data.tags, "I")])
    if data.offsets is not None:
        columns += _bytes([(data.offsets, "q")])
    head = HEAD.pack(MAGIC, file_id, level, n, m, *bounds, flags)
    sums = SUMS.pack(_checksum(directory, crc32c(head)), _checksum(columns, 0))
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in (head + sums + bytes(HEAD_BYTES - len(head) - len(sums)), *directory, *columns):
            left = memoryview(part)
            while left:
                left = left[file.write(left) :]
        os.fsync(descriptor)
    temporary.rename(path)
    fsync_dir(path.parent)


def _bytes(columns: Sequence[tuple[Column, str]]) -> list[Any]:
    """Return the columns as they go into the file, not copied where they are so already."""
    return [column.data if column.kind == kind else column.astype(kind).data for column, kind in columns]


def _checksum(parts: Sequence[Any], value: int) -> int:
    for part in parts:
        value = crc32c(part, value)
    return value


def merge_runs(runs: Sequence[Run]) -> RunData:
    """Join neighbouring runs, oldest first. Raises CorruptIndex."""
    for run in runs:
        run.check()
    return native.core.make_run_table(runs).merge()


MANIFEST_NAME = "MANIFEST"
_OFFSETS_MAGIC = b"LMQOFFS1"
_OFFSETS_HEAD = struct.Struct("<8sQ")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live files of the index; `runs` are ids, oldest first."""

    next_file_id: int = 1
    end_position: int = 0
    offsets_id: int = 0
    runs: tuple[int, ...] = ()
    confirmed_position: int | None = None
    """Up to where the group had confirmed what the runs hold; None: all of it."""

    @property
    def confirmed(self) -> int:
        """Up to where everything in the runs is confirmed."""
        return self.end_position if self.confirmed_position is None else self.confirmed_position


def offsets_path(directory: Path, file_id: int) -> Path:
    """Return the offsets file `file_id`."""
    return directory / f"offsets-{file_id:010d}"


def save_offsets(path: Path, next_offsets: Column) -> None:
    """Write the next offset of every queue durably. Raises OSError."""
    data = _OFFSETS_HEAD.pack(_OFFSETS_MAGIC, len(next_offsets)) + next_offsets.astype("q").tobytes()
    atomic_replace(path, data + struct.pack("<I", crc32c(data)), mode=0o600)


def load_offsets(path: Path) -> Column:
    """Return the next offset of every queue. Raises CorruptIndex."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptIndex(path, "the manifest names it but it is not there") from error
    if len(data) < 20 or struct.unpack("<I", data[-4:])[0] != crc32c(data[:-4]):
        raise CorruptIndex(path, "its checksum does not match")
    magic, count = _OFFSETS_HEAD.unpack_from(data)
    if magic != _OFFSETS_MAGIC or len(data) != _OFFSETS_HEAD.size + 8 * count + 4:
        raise CorruptIndex(path, "it is no offsets file")
    return view(data, "q", count, _OFFSETS_HEAD.size).astype("q")


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the MANIFEST durably. Raises OSError."""
    value: dict[str, Any] = {
        "end_position": manifest.end_position,
        "next_file_id": manifest.next_file_id,
        "offsets_id": manifest.offsets_id,
        "runs": manifest.runs,
    }
    if manifest.confirmed_position is not None:
        value["confirmed_position"] = manifest.confirmed_position
    atomic_replace(directory / MANIFEST_NAME, sealed_json(value), mode=0o600)


def load_manifest(directory: Path) -> Manifest | None:
    """Return the MANIFEST, None when there is none yet. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / MANIFEST_NAME)
    if value is None:
        return None
    try:
        confirmed = value.get("confirmed_position")
        return Manifest(
            next_file_id=int(value["next_file_id"]),
            end_position=int(value["end_position"]),
            offsets_id=int(value["offsets_id"]),
            runs=tuple(int(run) for run in value["runs"]),
            confirmed_position=None if confirmed is None else int(confirmed),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / MANIFEST_NAME, f"it lacks {error}") from error


Floors = tuple[Column, Column]
"""Queue ids and their next offsets."""


def next_offsets_of(directory: Path, manifest: Manifest, runs: Sequence[Run], floors: Sequence[Floors] = ()) -> Column:
    """Return the next offset of every queue id up to the highest one known. Raises CorruptIndex."""
    found = load_offsets(offsets_path(directory, manifest.offsets_id)) if manifest.offsets_id else _NONE
    # A merged run is younger than the file and may still hold an older number: the larger one is right.
    young = [(run.queues, run.next_offsets) for run in runs if run.file_id > manifest.offsets_id and run.entry_count]
    known = [*young, *floors]
    count = max([len(found), *(queues.max() + 1 for queues, _ in known)])
    found = joined([found, empty(count - len(found), "q")])
    for queues, next_offsets in known:
        found[queues] = maximum(found[queues], next_offsets)
    return found


_NONE = empty(0, "q")


BLOCK_ENTRIES = 2048
"""Entries of a block: what is confirmed together at most."""
Covered = tuple[EntryBlock, int]
"""Entries in log order, and the log position up to which they are all."""


def unconfirmed_entries(runs: Sequence[Run], confirmed: int, end: int) -> list[Covered]:
    """Return what the runs, which cover the log to `end`, hold from position `confirmed` on. Raises CorruptIndex."""
    pieces = [_columns_from(run, confirmed) for run in runs if run.end_position > confirmed and run.entry_count]
    if not pieces:
        return []
    columns = [joined(column) for column in zip(*pieces, strict=True)]
    order = argsort(columns[2])
    columns = [column[order] for column in columns]
    positions, total = columns[2], len(order)
    found: list[Covered] = []
    first = 0
    while first < total:
        cut = min(first + BLOCK_ENTRIES, total)
        while cut < total and positions[cut] == positions[cut - 1]:  # one record in many queues
            cut += 1
        block = native.core.make_block(*(column[first:cut].tolist() for column in columns))
        found.append((block, positions[cut] if cut < total else end))
        first = cut
    return found


def hide(confirmed: Column, found: Sequence[Covered]) -> None:
    """Let the confirmed end of every queue, by id, stand before its first entry in `found`."""
    for block, _ in reversed(found):
        queues, offsets, *_ = block.columns()
        for queue, offset in zip(reversed(queues), reversed(offsets), strict=True):
            confirmed[queue] = min(offset, confirmed[queue])


def _columns_from(run: Run, position: int) -> list[Column]:
    """Return (queue, offset, position, size, tag, count) of the entries at or behind a log position."""
    queues, offsets, positions, sizes, tags = run.columns()
    following = empty(run.entry_count, "q")
    following[:-1] = offsets[1:]
    following[run.starts[1:] - 1] = run.next_offsets
    chosen = positions >= position
    return [column[chosen].astype("q") for column in (queues, offsets, positions, sizes, tags, following - offsets)]
