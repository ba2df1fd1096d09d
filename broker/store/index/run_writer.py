"""Writes runs: what `hot.core` sorted out of the tail's entries, and neighbouring runs merged into one.

Invariant: a run gets its name only when every byte of it is on the disk, and a MANIFEST says that name only when it is
there too. Thread rule: any thread, plain values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store import hot
from broker.store.index.run import FLAG_OFFSETS, HEAD, HEAD_BYTES, MAGIC, SUMS, Run, columns_at
from remoting.native.checksum import crc32c
from remoting.native.contracts import RunData
from runtime.files import fsync_dir


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
    return hot.core.make_run_table(runs).merge()
