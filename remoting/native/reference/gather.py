"""Copy many records out of a mapped file into one piece, without a step of Python for each of them.

Records of one queue lie apart, but few sizes occur among them: everything of one size is one numpy assignment between
two views whose items are as long as a record and may begin at any multiple of 8. Invariant: `out` holds the records
back to back in the order given. Thread rule: pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GRAIN = 8
"""Records begin and end at multiples of it."""
SIZE_GROUP_MIN = 8
"""Records per distinct size below which single slices are cheaper than one assignment per size."""

Column = npt.NDArray[Any]


def gather(source: memoryview, starts: Column, sizes: Column, out: memoryview) -> None:
    """Fill `out` with the spans of `source`; starts and sizes in bytes, multiples of 8, inside `source`."""
    assert int(sizes.sum()) == len(out), (int(sizes.sum()), len(out))
    if not len(sizes):
        return
    distinct = np.flatnonzero(np.bincount(sizes // GRAIN)) * GRAIN
    targets = np.cumsum(sizes) - sizes
    if len(distinct) * SIZE_GROUP_MIN > len(sizes):
        for start, size, target in zip(starts.tolist(), sizes.tolist(), targets.tolist(), strict=True):
            out[target : target + size] = source[start : start + size]
        return
    for size in distinct.tolist():
        chosen = slice(None) if len(distinct) == 1 else sizes == size
        _items(out, size)[targets[chosen] // GRAIN] = _items(source, size)[starts[chosen] // GRAIN]


def _items(buffer: memoryview, size: int) -> Column:
    """View a buffer as overlapping items of `size` bytes, one beginning at every multiple of 8."""
    return np.ndarray(((len(buffer) - size) // GRAIN + 1,), np.dtype((np.void, size)), buffer, strides=(GRAIN,))
