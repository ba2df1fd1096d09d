"""Random batches, and a ring that assigns their offsets, for the twins of the store's hot loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from broker.store.placed import Placed, parts_of
from remoting.native.contracts import ROW_WORDS, SLOT_BYTES, Core, Encoded
from remoting.native.vectors import Column, empty, view
from remoting.protocol.records.image import encode_control_image
from remoting.protocol.records.record import (
    CODEC_LZ4,
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_SHIFT,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    FLAG_RETAIN,
    FLAG_STAGED,
    FORMAT_ARROW,
)
from tests.support.images import placed

FLAGS_BATCH = FORMAT_ARROW << FLAG_FORMAT_SHIFT | CODEC_LZ4 << FLAG_CODEC_SHIFT

QUEUES = 6
CAPACITY = 64


@st.composite
def messages(draw: Any) -> Placed:
    """A message of any kind."""
    count = draw(st.sampled_from([1, 1, 2, 65_536]))
    flags = draw(st.sampled_from([0, FLAG_MQTT, FLAG_MQTT | FLAG_RETAIN, FLAG_MQTT | FLAG_RETAIN | FLAG_STAGED]))
    flags |= FLAGS_BATCH if count > 1 or draw(st.booleans()) else 0
    return placed(
        draw(st.lists(st.integers(0, QUEUES - 1), max_size=4)),
        draw(st.binary(max_size=60)),
        flags=flags | draw(st.sampled_from([0, FLAG_GROUP_OPEN, 0xFFFF0001])),
        born_ms=draw(st.integers(-(2**40), 2**40)),
        topic=draw(st.binary(max_size=7)),
        keys=draw(st.binary(max_size=7)),
        tags=draw(st.one_of(st.binary(max_size=7), st.text(max_size=4).map(str.encode))),
        properties=draw(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=9)), max_size=3)),
        count=count,
        producer_seq=draw(st.sampled_from([0, 7, 2**64 - 1])),
    )


def bare(body: bytes) -> Placed:
    """A control record."""
    return Placed(encode_control_image(body, 9), [()])


@dataclass
class Bench:
    """One twin with a ring of its own; `encode` continues where the last batch ended, in segments of 1,024 bytes."""

    core: Core
    segment: int = 1024
    position: int = 0
    number: int = 1
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queues, self.slots = empty(CAPACITY, "I"), memoryview(bytearray(SLOT_BYTES * CAPACITY))
        self.rows = memoryview(bytearray(8 * ROW_WORDS * QUEUES)).cast("q")
        self.ring = self.core.make_ring(self.queues, self.slots, self.rows)
        self.encoder = self.core.make_encoder(3, self.segment // 2, 8)

    def word(self, word: int) -> Column:
        """One word of every queue's row."""
        return view(self.rows, "q", QUEUES, 8 * word, 8 * ROW_WORDS)

    def next_segment(self, position: int) -> int:
        """Record a segment that is created."""
        self.made.append(position)
        return position + self.segment

    def encode(self, batch: list[Placed], *, atomic: bool = False) -> Encoded:
        """Encode a batch where the last one ended."""
        end = self.position // self.segment * self.segment + self.segment
        images, queues = parts_of(batch)
        made = self.encoder.encode(self.ring, images, queues, atomic, 77, QUEUES, self.position, end, self.next_segment)
        self.position = made.end_position
        return made


def seen(made: Encoded) -> tuple[Any, ...]:
    """Everything a batch contains, comparable."""
    columns = made.entries.columns()
    return (
        made.first_position,
        made.end_position,
        made.pieces,
        made.offsets,
        made.retained,
        made.controls,
        bool(made.keyed),
        columns,
    )
