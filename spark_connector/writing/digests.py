"""What the rows of a batch were: how many, and a sum of their hashes, by which a repeated batch is recognised.

Hashed is what the broker would store of a row: topic, key, tag, properties, body, flags; not when it was made, not the
queue it goes to, and not its trace context, which is new each time a row passes a span. A row is hashed as its image
without the first words, which hold what is left out; its hash is two numbers of 64 bits:

    word i    x = (word ^ (i + 1) * STEP) * MIX, x ^= x >> 32; low += f(x * MIX_LOW, 29); high += f(x * MIX_HIGH, 31)
    row       f((low ^ low >> 32) * MIX, 29), f((high ^ high >> 32) * MIX_LOW, 31)      f(x, n) = x ^ x >> n

The digest adds these up modulo 2^64, so it does not depend on the order of the rows, nor on how they are divided among
tasks and broker groups; unlike an exclusive or, it counts a row that is there twice. It finds differences that happen,
not those that somebody makes up. Invariant: both twins give the same numbers, and a change of them has a new
`replays.KIND`: only digests of one kind are compared. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from remoting.protocol.bodies.sink_body import BatchDigest
from spark_connector.columns import layout
from spark_connector.writing.replays import KIND, WHOLE
from spark_connector.writing.row_encoder import SKIPPED_WORDS, EncodedRows

WORD = 8
PIECE_WORDS = 1 << 15
"""Words that the pure twin hashes at a time, which stay in the cache."""
STEP, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
MIX_LOW, MIX_HIGH = np.uint64(0x94D049BB133111EB), np.uint64(0xD6E8FEB86659FD93)

Words = np.ndarray[Any, np.dtype[np.uint64]]


def digest_of(rows: EncodedRows, kind: int = KIND) -> BatchDigest:
    """The digest of some rows, one image each, or what `row_encoder.compared_rows` makes of them."""
    if layout.core is not None:
        low, high = layout.core.digest(np.frombuffer(rows.data, np.uint8), rows.edges, SKIPPED_WORDS)
    else:
        low, high = hashed(rows.data, rows.edges)
    return BatchDigest(len(rows), low, high, kind)


def hashed(data: memoryview, edges: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, int]:
    """The pure twin of `remoting.native.compiled.columns.digest`, for rows longer than what is skipped."""
    words = np.frombuffer(data, "<u8")
    starts = edges // WORD
    low = high = begin = 0
    while begin < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[begin] + PIECE_WORDS, side="right")) - 1
        end = max(begin + 1, end)
        part = _hashed(words[int(starts[begin]) : int(starts[end])], starts[begin : end + 1] - starts[begin])
        low, high, begin = low + part[0], high + part[1], end
    return low % WHOLE, high % WHOLE


def _hashed(words: Words, starts: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[int, int]:
    lengths = np.diff(starts)
    places = np.arange(len(words), dtype=np.int64) - np.repeat(starts[:-1], lengths) - (SKIPPED_WORDS - 1)
    kept = places > 0
    mixed = words[kept] ^ (places[kept].astype(np.uint64) * STEP)
    mixed *= MIX
    mixed ^= mixed >> np.uint64(32)
    firsts = (starts - SKIPPED_WORDS * np.arange(len(starts)))[:-1]
    low = np.add.reduceat(_folded(mixed * MIX_LOW, 29), firsts)
    high = np.add.reduceat(_folded(mixed * MIX_HIGH, 31), firsts)
    low = _folded((low ^ (low >> np.uint64(32))) * MIX, 29)
    high = _folded((high ^ (high >> np.uint64(32))) * MIX_LOW, 31)
    return int(low.sum(dtype=np.uint64)), int(high.sum(dtype=np.uint64))


def _folded(numbers: Words, bits: int) -> Words:
    return numbers ^ (numbers >> np.uint64(bits))
