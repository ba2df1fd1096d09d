"""Find the parts of many records at once: from raw record bytes to numpy spans (start and length of every part).

The record layout is `remoting.protocol.records.record`; all lengths are in its fixed header, so one gather of the
headers gives every span without a loop. Invariant: a `Records` has been checked: magic, sizes inside the blob, property
lengths, checksum. Nothing behind it needs to look twice. Thread rule: pure functions over buffers the caller keeps
alive.

The compiled way from records to Arrow: one call checks them all, one call makes a whole column.

The pure twin is `layout` and the numpy half of `arrow`; tests run both and compare them. Invariant: what is accepted,
refused and shown is the same. Thread rule: pure functions over buffers the caller keeps alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remoting.native.checksum import crc32c
from remoting.native.choice import Choice, choose
from remoting.protocol.bodies.pull_body import PulledRange
from remoting.protocol.records import record
from spark_connector.errors import BrokenRecord

TOPIC, KEYS, TAGS, MQTT_TOPIC, BODY, PROPERTY = range(6)
"""Parts of a record as `remoting.native.compiled.columns.column` numbers them."""


PIECE_ROWS = 4_096
"""Rows made into columns at a time: every column walks the same records, which should still be in the cache then."""


class RecordBytes(Protocol):
    """Records back to back, with where each begins; see `Records`."""

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
        yield part_of(pulled, begin, min(begin + PIECE_ROWS, pulled.count), pulled.first_offset + begin)


def part_of(pulled: PulledRange, first: int, last: int, offset: int) -> PulledRange:
    """Records `first` to `last` as a pull of their own, which begins at `offset` if their offsets follow each other."""
    starts = np.frombuffer(pulled.starts, "<u4").astype(np.int64)
    low, high = int(starts[first]), int(starts[last]) if last < len(starts) else len(pulled.blob)
    return msgspec.structs.replace(
        pulled,
        first_offset=offset if pulled.offsets is None else pulled.first_offset,
        next_offset=offset + last - first,
        count=last - first,
        starts=memoryview((starts[first:last] - low).astype("<u4").tobytes()),
        blob=pulled.blob[low:high],
        offsets=None if pulled.offsets is None else pulled.offsets[4 * first : 4 * last],
    )


def are_sound(records: RecordBytes) -> bool:
    """Whether every record is a message that passes all its checks; False: the pure twin finds the reason."""
    return bool(core.first_bad(records.data, records.starts, True) < 0)


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """Variable-length parts of a set of records as columns, by compiled code."""

    records: RecordBytes

    def binary(self, part: int) -> pa.Array:
        """One part of every record as bytes."""
        offsets, values, validity, nulls, _ = core.column(self.records.data, self.records.starts, part, b"")
        return _array(pa.binary(), len(self.records), offsets, values, validity, nulls)

    def text(self, part: int, key: bytes = b"") -> pa.Array:
        """One part of every record as text; bytes that are not UTF-8 show the replacement character."""
        return _text(len(self.records), *core.column(self.records.data, self.records.starts, part, key))

    def properties(self, type_: pa.DataType) -> pa.Array:
        """All properties as a map."""
        first, keys, values = core.properties(self.records.data, self.records.starts)
        pairs = int(np.frombuffer(first, "<i4")[-1])
        columns = [_text(pairs, *keys), _text(pairs, *values)]
        entries = pa.StructArray.from_arrays(columns, fields=[type_.key_field, type_.item_field])
        return pa.Array.from_buffers(type_, len(self.records), [None, pa.py_buffer(first)], children=[entries])


def _array(
    type_: pa.DataType, rows: int, offsets: bytes, values: bytes, validity: bytes | None, nulls: int
) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    return pa.Array.from_buffers(type_, rows, [bitmap, pa.py_buffer(offsets), pa.py_buffer(values)], nulls)


def _text(rows: int, offsets: bytes, values: bytes, validity: bytes | None, nulls: int, is_ascii: bool) -> pa.Array:
    if is_ascii:
        return _array(pa.string(), rows, offsets, values, validity, nulls)
    return as_text(_array(pa.binary(), rows, offsets, values, validity, nulls))


def numbers(values: NDArray[Any], absent: Bools | None = None) -> pa.Array:
    """Numbers or truth values as a column, null where `absent`.

    `pa.array` does the same, and imports pandas the first time: two seconds of CPU in each of Spark's Python workers.
    """
    rows = len(values)
    is_truth = values.dtype == np.bool_
    held = np.packbits(values, bitorder="little") if is_truth else np.ascontiguousarray(values)
    validity = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    type_ = pa.bool_() if is_truth else pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, rows, [validity, pa.py_buffer(held)])


def one(value: bytes | str | int | None, type_: pa.DataType) -> pa.Scalar:
    """One text, byte string, whole number or null as Arrow's value; `pa.scalar` imports pandas, see `numbers`."""
    if value is None:
        return pa.nulls(1, type_)[0]
    if isinstance(value, bytes | str):
        raw = value if isinstance(value, bytes) else value.encode()
        edges = pa.py_buffer(np.array([0, len(raw)], np.int32))
        return pa.Array.from_buffers(type_, 1, [None, edges, pa.py_buffer(raw)])[0]
    return numbers(np.array([value], np.dtype(str(type_))))[0]


def byte_strings(values: Sequence[bytes | None]) -> pa.Array:
    """Byte strings or nulls as a binary column; `pa.array` imports pandas, see `numbers`.

    Raises pa.ArrowInvalid for 2 GB or more, which a binary column cannot hold.
    """
    edges = np.concatenate([[0], np.cumsum([len(value or b"") for value in values], dtype=np.int64)]).astype(np.int64)
    valid = np.array([value is not None for value in values], np.bool_)
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = pa.py_buffer(b"".join(value or b"" for value in values))
    held = pa.Array.from_buffers(pa.large_binary(), len(values), [validity, pa.py_buffer(edges), data])
    return held.cast(pa.binary())


def in_numpy(column: pa.Array) -> NDArray[Any]:
    """A copy of a column of numbers or truth values without nulls; `to_numpy` imports pandas, see `numbers`."""
    if column.null_count:
        raise ValueError(f"{column.null_count} nulls in a column that is to have none")
    if pa.types.is_boolean(column.type):
        return in_numpy(column.cast(pa.uint8())).view(np.bool_)
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize).copy()


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes as text; those that are not UTF-8 show the replacement character."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist()]
        return pa.array(decoded, pa.string())


Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HEADER = np.dtype(
    [
        ("total", "<u4"), ("magic", "<u4"), ("crc", "<u4"), ("epoch", "<u4"), ("position", "<u8"), ("born_ms", "<i8"),
        ("store_ms", "<i8"), ("body_len", "<u4"), ("body_off", "<u4"), ("flags", "<u4"), ("count", "<u4"),
        ("n_dispatch", "<u2"), ("n_props", "<u2"), ("topic_len", "<u2"), ("keys_len", "<u2"), ("tags_len", "<u2"),
        ("props_len", "<u2"), ("tag_hash", "<u4"), ("producer_seq", "<u8"),
    ]
)  # fmt: skip
assert HEADER.itemsize == record.HEADER_SIZE
TEXTS = ("topic", "keys", "tags", "props")
"""The texts of a record in the order in which they follow the table of property lengths; the first three are `TOPIC`,
`KEYS` and `TAGS`."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The properties of many records, flat: `first[i]` to `first[i + 1]` are the pairs of record i."""

    first: Ints
    key_at: Ints
    key_len: Ints
    value_at: Ints
    value_len: Ints


class Records:
    """Checked records of one queue: where each begins in `data`, its header fields and its queue offset.

    What several columns need (header fields as plain integers, where the texts begin, the properties) is made once.
    """

    __slots__ = ("_fields", "_lengths_at", "_pairs", "_texts_at", "data", "head", "offsets", "starts")

    def __init__(self, data: NDArray[np.uint8], starts: Ints, head: NDArray[Any], offsets: Ints) -> None:
        self.data = data
        self.starts = starts
        self.head = head
        self.offsets = offsets
        self._fields: dict[str, Ints] = {}
        self._lengths_at: Ints | None = None
        self._texts_at: dict[str, Ints] = {}
        self._pairs: Pairs | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def field(self, name: str) -> Ints:
        """One header field of every record."""
        found = self._fields.get(name)
        if found is None:
            found = self._fields[name] = self.head[name].astype(np.int64)
        return found

    def lengths_at(self) -> Ints:
        """Where the table of property lengths begins."""
        if self._lengths_at is None:
            self._lengths_at = self.starts + (record.HEADER_SIZE + record.DISPATCH_SIZE * self.field("n_dispatch"))
        return self._lengths_at

    def text_span(self, name: str) -> tuple[Ints, Ints]:
        """(start, length) of `topic`, `keys`, `tags` or `props`."""
        if not self._texts_at:
            at = self.lengths_at() + 4 * self.field("n_props")
            for part in TEXTS:
                self._texts_at[part] = at
                at = at + self.field(f"{part}_len")
        return self._texts_at[name], self.field(f"{name}_len")

    def span(self, part: int, key: bytes = b"") -> tuple[Ints, Ints, Bools | None]:
        """(start, length, present) of one part of every record; None: present in all. An empty key or tag is absent."""
        if part == PROPERTY:
            return self.find_property(key)
        if part == MQTT_TOPIC:
            return self.mqtt_topic_span()
        if part == BODY:
            return self.starts + self.field("body_off"), self.field("body_len"), None
        at, length = self.text_span(TEXTS[part])
        return at, length, None if part == TOPIC else length > 0

    def is_mqtt(self) -> Bools:
        """Which records came over MQTT."""
        return (self.field("flags") & record.FLAG_MQTT).astype(bool)

    def mqtt_topic_span(self) -> tuple[Ints, Ints, Bools]:
        """(start, length, present) of the full MQTT topic: the value of the first property."""
        present = self.is_mqtt() & (self.field("n_props") > 0)
        shorts = self.data.view("<u2")
        at = np.where(present, self.lengths_at() >> 1, 0)
        key_len = shorts[at].astype(np.int64)
        value_len = shorts[at + 1].astype(np.int64)
        props_at, _ = self.text_span("props")
        return np.where(present, props_at + key_len, self.starts), np.where(present, value_len, 0), present

    def pairs(self) -> Pairs:
        """Spans of all property keys and values."""
        if self._pairs is None:
            self._pairs = self._find_pairs()
        return self._pairs

    def _find_pairs(self) -> Pairs:
        counts = self.field("n_props")
        first = np.zeros(len(self) + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        pieces = 2 * counts
        flat = np.arange(2 * first[-1])
        shorts = self.data.view("<u2")
        lengths = shorts[np.repeat((self.lengths_at() >> 1) - 2 * first[:-1], pieces) + flat].astype(np.int64)
        before = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=before[1:])
        props_at, _ = self.text_span("props")
        at = np.repeat(props_at - before[2 * first[:-1]], pieces) + before[:-1]
        return Pairs(first, at[0::2], lengths[0::2], at[1::2], lengths[1::2])

    def find_property(self, key: bytes) -> tuple[Ints, Ints, Bools]:
        """(start, length, present) of one property's value; of a repeated key the last one."""
        pairs = self.pairs()
        present = np.zeros(len(self), bool)
        at, length = self.starts.copy(), np.zeros(len(self), np.int64)
        candidates = np.flatnonzero(pairs.key_len == len(key))
        if len(candidates):
            spelled = self._spelled(pairs.key_at[candidates], len(key))
            candidates = candidates[spelled == np.frombuffer(key, f"S{len(key)}")[0]]
            rows = np.searchsorted(pairs.first, candidates, side="right") - 1
            present[rows] = True
            at[rows] = pairs.value_at[candidates]
            length[rows] = pairs.value_len[candidates]
        return at, length, present

    def _spelled(self, at: Ints, length: int) -> NDArray[np.bytes_]:
        """Copy of the bytes that begin at each place, one item per place."""
        everywhere: NDArray[np.bytes_] = np.ndarray(
            (len(self.data) - length + 1,), f"S{length}", self.data, strides=(1,)
        )
        return everywhere[at]


def parse_records(pulled: PulledRange, where: str) -> Records:
    """Check the records of one pull and return them; raises BrokenRecord that names `where` and the offset."""
    count = pulled.count
    starts = np.frombuffer(pulled.starts, "<u4").astype(np.int64)
    data = np.frombuffer(pulled.blob, np.uint8)
    if data.ctypes.data % 8 or len(data) % 8:
        data = np.concatenate([data, np.zeros(-len(data) % 8, np.uint8)])
    offsets = offsets_of(pulled)
    size = len(pulled.blob)
    if count and (starts[0] < 0 or (starts % 8).any() or int(np.max(starts)) + record.HEADER_SIZE > size):
        raise BrokenRecord(f"{where}: the record table points outside the {size} bytes that came with it")
    head = _headers(data)[starts >> 3].view(HEADER)
    records = Records(data, starts, head, offsets)
    if core is None or not are_sound(records):
        _check_sizes(records, size, where)
        _check_sums(records, where)
    return records


def offsets_of(pulled: PulledRange) -> Ints:
    """Queue offset of every record of a pull, as far as none of them is a batch."""
    if pulled.offsets is None:
        return np.arange(pulled.first_offset, pulled.first_offset + pulled.count, dtype=np.int64)
    return np.frombuffer(pulled.offsets, "<u4").astype(np.int64) + pulled.first_offset


def _headers(data: NDArray[np.uint8]) -> NDArray[np.void]:
    """View bytes as overlapping headers, one at every multiple of 8; plain bytes, which are copied in one go each."""
    places = max(0, len(data) - HEADER.itemsize) // 8 + 1
    return np.ndarray((places,), np.dtype((np.void, HEADER.itemsize)), data, strides=(8,))


def _fail_first(records: Records, wrong: Bools, where: str, what: str) -> None:
    """Raise for the first record of the mask."""
    if wrong.any():
        offset = int(records.offsets[np.flatnonzero(wrong)[0]])
        raise BrokenRecord(f"{where}, offset {offset}: {what}")


def _check_sizes(records: Records, size: int, where: str) -> None:
    """Every part of every record lies inside it, and it is a record of one message."""
    head = records.head
    _fail_first(
        records, head["magic"] != record.MESSAGE, where, "not a message record (batches need a newer connector)"
    )
    total, body_at, body_len = records.field("total"), records.field("body_off"), records.field("body_len")
    props_at, props_len = records.text_span("props")
    outside = (
        (records.starts + total > size)
        | (body_at + body_len > total)
        | (props_at + props_len > records.starts + body_at)
    )
    _fail_first(records, outside, where, "its sizes contradict each other")
    pairs = records.pairs()
    ends = np.concatenate([[0], np.cumsum(pairs.key_len + pairs.value_len)])
    described = ends[pairs.first[1:]] - ends[pairs.first[:-1]]
    _fail_first(records, described != props_len, where, "its property lengths do not add up")


def _check_sums(records: Records, where: str) -> None:
    """Check every checksum; all at once, and one after the other only where that fails."""
    totals = records.field("total")
    if _follow_each_other(records, totals) and _sums_agree(records, totals):
        return
    view, seed = records.data.data, record.CHECKSUM_SEEDS[record.MESSAGE]
    begins = (records.starts + record.CRC_START).tolist()
    ends = (records.starts + totals).tolist()
    sums = np.array([crc32c(view[begin:end], seed) for begin, end in zip(begins, ends, strict=True)], np.uint32)
    _fail_first(records, sums != records.head["crc"], where, "its checksum is wrong")


def _follow_each_other(records: Records, totals: Ints) -> bool:
    """Whether the records lie back to back from the first byte on, each a multiple of 8 long."""
    ends = np.cumsum(totals)
    return not (totals & 7).any() and bool((records.starts == ends - totals).all())


def _sums_agree(records: Records, totals: Ints) -> bool:
    """Compare all checksums in one pass over a copy of the bytes.

    A checksum is linear: bytes with their own checksum appended leave the remainder 0 (after the constant that
    `_sum_of_zeros` stands for is taken out), wherever they stand in a longer stream of such pieces. The first 12 bytes
    of a record are not covered by its checksum, so the record before can put its own there. One remainder of all
    pieces is 0 if each of them is; a damaged one alone always shows, because its remainder is only multiplied by a
    power of x on the way, and several cancel each other as rarely as a checksum misses an accident.
    """
    if not len(records):
        return True
    grains = totals >> 3
    constants = np.zeros(int(np.max(grains)) + 1, np.uint32)
    for grain in np.flatnonzero(np.bincount(grains)).tolist():
        constants[grain] = _sum_of_zeros(8 * grain - record.CRC_START)
    end = int(records.starts[-1] + totals[-1])
    stream = np.zeros(end + 8, np.uint8)
    stream[:end] = records.data[:end]
    words = stream.view("<u4")
    at = records.starts >> 2
    words[at + 1] = words[at + 2] = 0
    words[at[0]] = 0
    words[(records.starts + totals) >> 2] = records.head["crc"] ^ constants[grains]
    # With this start value the remainder begins at 0; a remainder of 0 comes back inverted.
    return bool(crc32c(stream.data, 0xFFFF_FFFF) == 0xFFFF_FFFF)


@lru_cache(maxsize=65_536)
def _sum_of_zeros(length: int) -> int:
    """Checksum of a record of zero bytes behind its type: the part that does not depend on the bytes."""
    return crc32c(bytes(length), record.CHECKSUM_SEEDS[record.MESSAGE])
