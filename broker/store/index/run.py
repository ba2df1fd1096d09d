"""One immutable, sorted, columnar piece of the index.

    index/run-<10-digit id>
       0 magic "LMQRUN02" | 8 id u64 | 16 level u32 | 20 queues n u32 | 24 entries m u64
      32 first position i64 | 40 end position i64 | 48 flags u32 | 52 directory crc32c u32 | 56 columns crc32c u32
      60 zeros to 64
      64 first_offset i64[n] | next_offset i64[n] | start u32[n + 1] | qid u32[n] | pad to 8
         position i64[m] | size u32[m] | tag_hash u32[m] | with flag 1: queue_offset i64[m]

Entries are sorted by (qid, queue offset); start[i] is where queue qid[i] begins. Without flag 1 every entry holds one
message and offsets count up from first_offset; with it an entry holds the messages up to the next entry's offset, the
queue's last one those up to next_offset. The directory checksum covers bytes [0, 52) and the directory; it is checked
at every open, the columns' one by `verify` and before a merge. Invariant: a run covers every entry of the log in [first
position, end position), and is never changed after its rename; it gets its name only when every byte of it is on the
disk. Thread rule: immutable, any thread.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.errors import CorruptIndex
from remoting.native import core as native
from remoting.native.checksum import crc32c
from remoting.native.contracts import RunData
from runtime.files import fsync_dir

MAGIC = b"LMQRUN02"
HEAD = struct.Struct("<8sQIIQqqI")
SUMS = struct.Struct("<II")
HEAD_BYTES = 64
FLAG_OFFSETS = 1
"""The run has a column of queue offsets."""
Columns = tuple[npt.NDArray[Any], ...]


class Run:
    """A mapped run file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEAD_BYTES:
                raise CorruptIndex(path, f"{size} bytes are too few for a run")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        magic, self.file_id, self.level, n, m, self.first_position, self.end_position, flags = HEAD.unpack_from(data, 0)
        directory_sum, self._columns_sum = SUMS.unpack_from(data, HEAD.size)
        at = columns_at(n)
        if magic != MAGIC or flags & ~FLAG_OFFSETS or size != at + (24 if flags else 16) * m:
            raise CorruptIndex(path, f"no run of {n} queues and {m} entries in {size} bytes")
        view = memoryview(data)
        if crc32c(view[HEAD_BYTES:at], crc32c(view[: HEAD.size])) != directory_sum:
            raise CorruptIndex(path, "the checksum of its directory does not match")
        self._columns = view[at:]
        self.entry_count = m
        self.first_offsets = np.frombuffer(data, "<i8", n, HEAD_BYTES)
        self.next_offsets = np.frombuffer(data, "<i8", n, HEAD_BYTES + 8 * n)
        """For each of `queues`, the offset behind its last entry here."""
        self.starts = np.frombuffer(data, "<u4", n + 1, HEAD_BYTES + 16 * n)
        self.queues = np.frombuffer(data, "<u4", n, HEAD_BYTES + 20 * n + 4)
        self.positions = np.frombuffer(data, "<i8", m, at)
        self.sizes = np.frombuffer(data, "<u4", m, at + 8 * m)
        self.tags = np.frombuffer(data, "<u4", m, at + 12 * m)
        self.offsets = np.frombuffer(data, "<i8", m, at + 16 * m) if flags else None
        """Queue offset of every entry; None when each is one more than the one before."""

    def counts(self) -> npt.NDArray[Any]:
        """Return how many entries each of `queues` has."""
        counts: npt.NDArray[Any] = np.diff(self.starts.astype(np.int64))
        return counts

    def offset_column(self) -> npt.NDArray[Any]:
        """Return the queue offset of every entry."""
        if self.offsets is not None:
            return self.offsets
        return np.repeat(self.first_offsets - self.starts[:-1], self.counts()) + np.arange(self.entry_count)

    def columns(self) -> Columns:
        """Return (qid, offset, position, size, tag) of all entries, sorted by (qid, offset). Raises CorruptIndex."""
        self.check()
        return np.repeat(self.queues, self.counts()), self.offset_column(), self.positions, self.sizes, self.tags

    def check(self) -> None:
        """Check the columns, and that the directory means them, entry for entry. Raises CorruptIndex."""
        self.verify()
        counts = self.counts()
        dense = self.offsets is not None or bool((self.next_offsets - self.first_offsets == counts).all())
        whole = self.starts[0] == 0 and self.starts[-1] == self.entry_count and bool((counts > 0).all())
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
    """Write one run durably under a temporary name, rename it, and make that durable before a MANIFEST says it.

    `bounds` are the log positions covered. Raises OSError.
    """
    n, m = len(data.queues), len(data.positions)
    flags = 0 if data.offsets is None else FLAG_OFFSETS
    directory = _bytes([
        (data.first_offsets, "<i8"), (data.next_offsets, "<i8"), (data.starts, "<u4"), (data.queues, "<u4"),
    ])  # fmt: skip
    directory.append(bytes(columns_at(n) - HEAD_BYTES - 24 * n - 4))
    columns = _bytes([(data.positions, "<i8"), (data.sizes, "<u4"), (data.tags, "<u4")])
    if data.offsets is not None:
        columns += _bytes([(data.offsets, "<i8")])
    head = HEAD.pack(MAGIC, file_id, level, n, m, *bounds, flags)
    sums = SUMS.pack(_checksum(directory, crc32c(head)), _checksum(columns, 0))
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in (head + sums + bytes(HEAD_BYTES - len(head) - len(sums)), *directory, *columns):
            view = memoryview(part).cast("B") if len(part) else memoryview(b"")
            while view:
                view = view[file.write(view) :]
        os.fsync(descriptor)
    temporary.rename(path)
    fsync_dir(path.parent)


def _bytes(columns: Sequence[tuple[npt.NDArray[Any], str]]) -> list[Any]:
    """Return the columns as they go into the file, not copied where they are so already."""
    return [np.ascontiguousarray(column, kind) for column, kind in columns]


def _checksum(parts: Sequence[Any], value: int) -> int:
    for part in parts:
        value = crc32c(part, value)
    return value


def merge_runs(runs: Sequence[Run]) -> RunData:
    """Join neighbouring runs, oldest first. Raises CorruptIndex."""
    for run in runs:
        run.check()
    return native.core.make_run_table(runs).merge()
