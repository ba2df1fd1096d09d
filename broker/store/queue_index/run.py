"""One immutable, sorted, columnar piece of the index.

    index/run-<10-digit id>
       0 magic "LMQRUN01" | 8 id u64 | 16 level u32 | 20 queues n u32 | 24 entries m u64
      32 first position i64 | 40 end position i64 | 48 directory crc32c u32 | 52 columns crc32c u32 | 56 zeros to 64
      64 first_offset i64[n] | start u32[n + 1] | qid u32[n] | pad to 8
         position i64[m] | size u32[m] | tag_hash u32[m]

Entries are sorted by (qid, queue offset); start[i] is where queue qid[i] begins. The directory checksum covers bytes
[0, 48) and the directory; it is checked at every open, the columns' one by `verify` and before a merge.
Invariant: a run covers every entry of the log in [first position, end position), and is never changed after its rename.
Thread rule: immutable, any thread.
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
from crc32c import crc32c

from broker.store import hot
from broker.store.errors import CorruptIndex
from broker.store.queue_index.entries import Entries

MAGIC = b"LMQRUN01"
_HEAD = struct.Struct("<8sQIIQqq")
_SUMS = struct.Struct("<II")
_HEAD_BYTES = 64
Columns = tuple[npt.NDArray[Any], ...]


class Run:
    """A mapped run file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD_BYTES:
                raise CorruptIndex(path, f"{size} bytes are too few for a run")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        magic, self.file_id, self.level, n, m, self.first_position, self.end_position = _HEAD.unpack_from(data, 0)
        directory_sum, self._columns_sum = _SUMS.unpack_from(data, _HEAD.size)
        columns_at = _columns_at(n)
        if magic != MAGIC or size != columns_at + 16 * m:
            raise CorruptIndex(path, f"no run of {n} queues and {m} entries in {size} bytes")
        view = memoryview(data)
        if crc32c(view[_HEAD_BYTES:columns_at], crc32c(view[: _HEAD.size])) != directory_sum:
            raise CorruptIndex(path, "the checksum of its directory does not match")
        self._columns = view[columns_at:]
        self.entry_count = m
        self.first_offsets = np.frombuffer(data, "<i8", n, _HEAD_BYTES)
        self._starts = np.frombuffer(data, "<u4", n + 1, _HEAD_BYTES + 8 * n)
        self.queues = np.frombuffer(data, "<u4", n, _HEAD_BYTES + 12 * n + 4)
        self.positions = np.frombuffer(data, "<i8", m, columns_at)
        self.sizes = np.frombuffer(data, "<u4", m, columns_at + 8 * m)
        self.tags = np.frombuffer(data, "<u4", m, columns_at + 12 * m)

    def span(self, queue: int) -> tuple[int, int, int] | None:
        """Return (first queue offset, start, end) of the queue's entries in the columns; None when it has none here."""
        at = int(self.queues.searchsorted(queue))
        if at == len(self.queues) or self.queues[at] != queue:
            return None
        return int(self.first_offsets[at]), int(self._starts[at]), int(self._starts[at + 1])

    def entries(self, start: int, end: int) -> Entries:
        """Return a slice of the columns."""
        return Entries(self.positions[start:end], self.sizes[start:end], self.tags[start:end])

    def next_offsets(self) -> npt.NDArray[Any]:
        """Return, for each of `queues`, the offset behind its last entry here."""
        following: npt.NDArray[Any] = self.first_offsets + np.diff(self._starts.astype(np.int64))
        return following

    def columns(self) -> Columns:
        """Return (qid, position, size, tag) of all entries, sorted by (qid, queue offset). Raises CorruptIndex."""
        self.verify()
        counts: Any = np.diff(self._starts.astype(np.int64))
        return np.repeat(self.queues, counts), self.positions, self.sizes, self.tags

    def verify(self) -> None:
        """Check the columns. Raises CorruptIndex."""
        if crc32c(self._columns) != self._columns_sum:
            raise CorruptIndex(self.path, "the checksum of its columns does not match")


def run_path(directory: Path, file_id: int) -> Path:
    """Return the file of run `file_id`."""
    return directory / f"run-{file_id:010d}"


def _columns_at(queue_count: int) -> int:
    return (_HEAD_BYTES + 16 * queue_count + 4 + 7) & ~7


def write_run(
    path: Path, file_id: int, level: int, bounds: tuple[int, int], offsets: Columns, columns: Columns
) -> None:
    """Write one run durably under a temporary name and rename it (the caller makes the name durable with the MANIFEST).

    `bounds` are the log positions covered; `columns` (qid, position, size, tag) are sorted by (qid, offset); `offsets`
    holds, for each qid in rising order, the queue offset of its first entry. Raises OSError.
    """
    qid, position, size, tag = columns
    starts = _starts_of(qid)
    queues = qid[starts]
    (first_offsets,) = offsets
    assert len(first_offsets) == len(queues), (len(first_offsets), len(queues))
    n, m = len(queues), len(qid)
    directory = b"".join((
        np.asarray(first_offsets, "<i8").tobytes(),
        np.append(starts, m).astype("<u4").tobytes(),
        queues.astype("<u4").tobytes(),
    ))  # fmt: skip
    directory += bytes(_columns_at(n) - _HEAD_BYTES - len(directory))
    body = b"".join((position.astype("<i8").tobytes(), size.astype("<u4").tobytes(), tag.astype("<u4").tobytes()))
    head = _HEAD.pack(MAGIC, file_id, level, n, m, *bounds)
    sums = _SUMS.pack(crc32c(directory, crc32c(head)), crc32c(body))
    temporary = path.with_suffix(".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in (head + sums, bytes(_HEAD_BYTES - len(head) - len(sums)), directory, body):
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        os.fsync(descriptor)
    temporary.rename(path)


def sort_entries(sealed: Columns) -> tuple[Columns, Columns]:
    """Sort tail entries (qid, offset, position, size, tag) into what `write_run` takes: (offsets, columns)."""
    qid, offset, position, size, tag = sealed
    order = hot.core.order_by_queue(qid)
    qid = qid[order]
    return (offset[order[_starts_of(qid)]],), (qid, position[order], size[order], tag[order])


def merge_runs(runs: Sequence[Run]) -> tuple[Columns, Columns]:
    """Join neighbouring runs, oldest first, into what `write_run` takes. Raises CorruptIndex."""
    parts = [run.columns() for run in runs]
    qid, position, size, tag = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
    first_offsets = np.concatenate([run.first_offsets for run in runs])
    queues = np.concatenate([run.queues for run in runs])
    _, firsts = np.unique(queues, return_index=True)  # the first occurrence is the oldest run's
    order = hot.core.order_by_queue(qid)
    return (first_offsets[firsts],), (qid[order], position[order], size[order], tag[order])


def _starts_of(qid: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return where each queue begins in sorted queue ids."""
    return np.flatnonzero(np.concatenate((np.ones(min(len(qid), 1), bool), qid[1:] != qid[:-1])))
