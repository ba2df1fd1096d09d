"""Random batches, and a ring to give out their offsets, for the twins of the store's hot loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from broker.store.store_message import StoreMessage
from remoting.native.contracts import ROW_WORDS, SLOT, Core, Encoded
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

FLAGS_BATCH = FORMAT_ARROW << FLAG_FORMAT_SHIFT | CODEC_LZ4 << FLAG_CODEC_SHIFT

QUEUES = 6
CAPACITY = 64


@st.composite
def messages(draw: Any) -> StoreMessage:
    """A message whose meta has the lengths it says."""
    pairs = draw(st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=9)), max_size=3))
    topic, keys, tags = draw(st.tuples(*[st.binary(max_size=7)] * 3))
    raw = b"".join(part for pair in pairs for part in pair)
    table = b"".join(len(part).to_bytes(2, "little") for pair in pairs for part in pair)
    body = draw(st.binary(max_size=60))
    flags = draw(st.sampled_from([0, FLAG_MQTT, FLAG_MQTT | FLAG_RETAIN, FLAG_MQTT | FLAG_RETAIN | FLAG_STAGED]))
    count = draw(st.sampled_from([1, 1, 2, 65_536]))
    flags |= FLAGS_BATCH if count > 1 or draw(st.booleans()) else 0
    return StoreMessage(
        tuple(draw(st.lists(st.integers(0, QUEUES - 1), max_size=4))), draw(st.integers(-(2**40), 2**40)),
        flags | draw(st.sampled_from([0, FLAG_GROUP_OPEN, 0xFFFF0001])), draw(st.integers(0, 2**32 - 1)), len(pairs),
        len(topic), len(keys), len(tags), len(raw), table + topic + keys + tags + raw,
        memoryview(body) if draw(st.booleans()) else body, draw(st.sampled_from([0, 7, 2**64 - 1])), count,
    )  # fmt: skip


def bare(body: bytes) -> StoreMessage:
    """What a control record is made of."""
    return StoreMessage((), 9, 0, 0, 0, 0, 0, 0, 0, b"", body)


@dataclass
class Bench:
    """One twin with a ring of its own; `encode` goes on where the last batch ended, in segments of 1,024 bytes."""

    core: Core
    segment: int = 1024
    position: int = 0
    number: int = 1
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queues, self.slots = np.zeros(CAPACITY, "<u4"), np.zeros(CAPACITY, SLOT)
        self.rows = np.zeros((QUEUES, ROW_WORDS), "<i8")
        self.ring = self.core.make_ring(self.queues, self.slots, memoryview(self.rows.reshape(-1)))
        self.encoder = self.core.make_encoder(3, self.segment // 2, 8)

    def next_segment(self, position: int) -> int:
        """Take note of a segment that is made."""
        self.made.append(position)
        return position + self.segment

    def encode(self, batch: list[StoreMessage], controls: int = 0, *, atomic: bool = False) -> Encoded:
        """Encode a batch where the last one ended."""
        end = self.position // self.segment * self.segment + self.segment
        made = self.encoder.encode(
            self.ring, batch, controls, atomic, 77, QUEUES, self.position, end, self.next_segment
        )
        self.position = made.end_position
        return made


def seen(made: Encoded) -> tuple[Any, ...]:
    """Everything a batch says, comparable."""
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
