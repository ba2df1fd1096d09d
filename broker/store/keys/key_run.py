"""One immutable piece of the key index: entries sorted by the number of their key, then by log position.

    keys/run-<10-digit id>
       0 magic "LMQKEYS1" | 8 id u64 | 16 level u32 | 20 zero u32 | 24 entries m u64 | 32 first position i64
      40 end position i64 | 48 crc32c u32 of [0, 48) | 52 crc32c u32 of the columns | 56 zeros to 64
      64 position i64[m] | hash u32[m] | size u32[m] | store time in seconds u32[m]

Neither a directory nor offsets as in the queue index's runs: nearly every number has one entry, and 20 bytes are half.
The header's checksum is checked at every open, the columns' one by `verify` and before a merge.
Invariant: a run covers every key of the log in [first position, end position), and is never changed after its rename.
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

from broker.store.errors import CorruptIndex
from remoting.native import core as native
from remoting.native.checksum import crc32c
from runtime.files import atomic_write

MAGIC = b"LMQKEYS1"
ENTRY_BYTES = 20
_HEAD = struct.Struct("<8sQI4xQqq")
_SUMS = struct.Struct("<II")
_HEAD_BYTES = 64
Columns = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Hashes, positions, sizes in bytes, store times in seconds."""


class KeyRun:
    """A mapped run file. Raises CorruptIndex when its header fails its checks, OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD_BYTES:
                raise CorruptIndex(path, f"{size} bytes are too few for a run")
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        magic, self.file_id, self.level, m, self.first_position, self.end_position = _HEAD.unpack_from(data)
        head_sum, self._columns_sum = _SUMS.unpack_from(data, _HEAD.size)
        view = memoryview(data)
        if magic != MAGIC or size != _HEAD_BYTES + ENTRY_BYTES * m:
            raise CorruptIndex(path, f"no run of {m} keys in {size} bytes")
        if crc32c(view[: _HEAD.size]) != head_sum:
            raise CorruptIndex(path, "the checksum of its header does not match")
        self.entry_count = m
        self._columns = view[_HEAD_BYTES:]
        at = _HEAD_BYTES
        self.positions = np.frombuffer(data, "<i8", m, at)
        self.hashes = np.frombuffer(data, "<u4", m, at + 8 * m)
        self.sizes = np.frombuffer(data, "<u4", m, at + 12 * m)
        self.seconds = np.frombuffer(data, "<u4", m, at + 16 * m)

    def find(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return positions and store times in seconds of the entries of one key number, in log order."""
        hashes = self.hashes
        wanted = np.uint32(number)  # a plain int would make numpy convert the whole column first
        first = end = int(hashes.searchsorted(wanted))
        if first < self.entry_count and hashes[first] == wanted:
            end += 1
            if end < self.entry_count and hashes[end] == wanted:  # more than one, which is rare
                end += int(hashes[end:].searchsorted(wanted, side="right"))
        return self.positions[first:end], self.seconds[first:end]

    def columns(self) -> Columns:
        """Return all entries, sorted by number and position. Raises CorruptIndex."""
        self.verify()
        return self.hashes, self.positions, self.sizes, self.seconds

    def verify(self) -> None:
        """Check the columns. Raises CorruptIndex."""
        if crc32c(self._columns) != self._columns_sum:
            raise CorruptIndex(self.path, "the checksum of its columns does not match")


def key_run_path(directory: Path, file_id: int) -> Path:
    """Return the file of run `file_id`."""
    return directory / f"run-{file_id:010d}"


def sort_keys(parts: Sequence[Columns]) -> Columns:
    """Return the entries of `parts`, which follow each other in the log, as `write_key_run` takes them."""
    hashes, positions, sizes, seconds = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = native.core.order_by_queue(hashes)
    return hashes[order], positions[order], sizes[order], seconds[order]


def write_key_run(path: Path, file_id: int, level: int, bounds: tuple[int, int], columns: Columns) -> None:
    """Write one run durably.

    `bounds` are the log positions covered; `columns` are sorted by number and position. Raises OSError.
    """
    hashes, positions, sizes, seconds = columns
    body = (_bytes(positions, "<i8"), *(_bytes(column, "<u4") for column in (hashes, sizes, seconds)))
    head = _HEAD.pack(MAGIC, file_id, level, len(hashes), *bounds)
    columns_sum = 0
    for part in body:
        columns_sum = crc32c(part, columns_sum)
    sums = _SUMS.pack(crc32c(head), columns_sum)
    atomic_write(path, (head + sums + bytes(_HEAD_BYTES - len(head) - len(sums)), *body), mode=0o600)


def _bytes(column: npt.NDArray[Any], kind: str) -> bytes:
    return np.asarray(column, kind).tobytes()
