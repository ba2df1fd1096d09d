"""The compiled way from records to Arrow: one call checks them all, one call makes a whole column.

The pure twin is `layout` and the numpy half of `arrow`; tests run both and compare them. Invariant: what is accepted,
refused and shown is the same. Thread rule: pure functions over buffers the caller keeps alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from remoting.native.choice import Choice, choose
from remoting.protocol.bodies.pull_body import PulledRange

TOPIC, KEYS, TAGS, MQTT_TOPIC, BODY, PROPERTY = range(6)
"""Parts of a record as `remoting.native.compiled.columns.column` numbers them."""
PARTS = {"topic": TOPIC, "keys": KEYS, "tags": TAGS}


PIECE_ROWS = 4_096
"""Rows made into columns at a time: every column walks the same records, which should still be in the cache then."""


class RecordBytes(Protocol):
    """Records back to back, with where each begins; see `layout.Records`."""

    @property
    def data(self) -> Any:
        """The buffer that holds them."""
        ...

    @property
    def starts(self) -> Any:
        """Byte offset of each in the buffer."""
        ...

    def __len__(self) -> int: ...


def _compiled() -> Any:
    from remoting.native.compiled import columns as compiled

    return compiled


choice: Choice[Any] = choose(_compiled, lambda: None)
"""Which twin is in use, and why."""
core: Any = choice.core
"""The compiled functions, None where the pure twin serves."""


def pieces(pulled: PulledRange) -> Iterator[PulledRange]:
    """Yield the pull in pieces of that many rows; as a whole where its starts do not rise inside the bytes it has."""
    starts = np.frombuffer(pulled.starts, "<u4").astype(np.int64)
    if (np.diff(starts) <= 0).any() or starts[-1] >= len(pulled.blob):
        yield pulled
        return
    for begin in range(0, pulled.count, PIECE_ROWS):
        end = min(begin + PIECE_ROWS, pulled.count)
        low, high = int(starts[begin]), int(starts[end]) if end < pulled.count else len(pulled.blob)
        table = memoryview((starts[begin:end] - low).astype("<u4").tobytes())
        offsets = None if pulled.offsets is None else pulled.offsets[4 * begin : 4 * end]
        first = pulled.first_offset + (begin if offsets is None else 0)
        yield msgspec.structs.replace(
            pulled, first_offset=first, count=end - begin, starts=table, blob=pulled.blob[low:high], offsets=offsets
        )


def are_sound(records: RecordBytes) -> bool:
    """Whether every record is a message that passes all its checks; False: the pure twin finds the reason."""
    return bool(core.first_bad(records.data, records.starts, True) < 0)


def binary(records: RecordBytes, part: int) -> pa.Array:
    """One part of every record as bytes."""
    offsets, values, validity, nulls, _ = core.column(records.data, records.starts, part, b"")
    return _array(pa.binary(), len(records), offsets, values, validity, nulls)


def text(records: RecordBytes, part: int, key: bytes = b"") -> pa.Array:
    """One part of every record as text; bytes that are not UTF-8 show the replacement character."""
    return _text(len(records), *core.column(records.data, records.starts, part, key))


def properties(records: RecordBytes, type_: pa.DataType) -> pa.Array:
    """All properties as a map."""
    first, keys, values = core.properties(records.data, records.starts)
    pairs = int(np.frombuffer(first, "<i4")[-1])
    columns = [_text(pairs, *keys), _text(pairs, *values)]
    entries = pa.StructArray.from_arrays(columns, fields=[type_.key_field, type_.item_field])
    return pa.Array.from_buffers(type_, len(records), [None, pa.py_buffer(first)], children=[entries])


def _array(
    type_: pa.DataType, rows: int, offsets: bytes, values: bytes, validity: bytes | None, nulls: int
) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(type_, rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)], nulls)


def _text(rows: int, offsets: bytes, values: bytes, validity: bytes | None, nulls: int, is_ascii: bool) -> pa.Array:
    if is_ascii:
        return _array(pa.string(), rows, offsets, values, validity, nulls)
    raw = _array(pa.binary(), rows, offsets, values, validity, nulls)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        return pa.array(decoded, pa.string())
