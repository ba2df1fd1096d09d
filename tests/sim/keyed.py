"""Records with unusual keys of every kind, one after the other, for the twins and the parts of the key index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from broker.store.keys.key_store import KeyQuestion
from broker.store.log_store import LogStore
from broker.store.placed import Placed
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import BATCH, CONTROL, FILLER, FLAG_MQTT, FLAG_STAGED, MESSAGE, RecordView
from tests.support.images import placed
from tests.support.records import make_record

WORDS = st.sampled_from([b"", b"a", b"b", b"ab", b"k1", b"k2", b"\xff\0", b"x" * 30])
PROPERTY = st.tuples(st.sampled_from([UNIQUE_KEY, b"UNIQ_KEX", b"U", b"", b"other"]), WORDS)


@st.composite
def fields(draw: Any) -> dict[str, Any]:
    """The arguments of `make_record`, except the position."""
    many = st.integers(0, 140).map(lambda n: [b"%d" % number for number in range(n)])
    keys = draw(st.lists(WORDS, max_size=4) | many)
    return {
        "body": draw(st.binary(max_size=9)),
        "topic": draw(st.sampled_from([b"t", b"u", b""])),
        "keys": b" ".join(keys),
        "tags": draw(st.sampled_from([b"", b"tag"])),
        "properties": draw(st.lists(PROPERTY, max_size=3)),
        "flags": draw(st.sampled_from([0, 0, FLAG_MQTT, FLAG_STAGED, FLAG_MQTT | FLAG_STAGED])),
        "dispatch": draw(st.sampled_from([((1, 0),), ((1, 0), (2, 5)), ()])),
        "magic_type": draw(st.sampled_from([MESSAGE, MESSAGE, BATCH, CONTROL, FILLER])),
        "store_ms": draw(st.sampled_from([0, 999, 1000, 2**32 * 1000, -5])),
    }


def back_to_back(records: list[dict[str, Any]], base: int = 0) -> tuple[bytes, list[int]]:
    """The bytes of the records from log position `base` on, and the position of each."""
    data, positions = b"", []
    for record in records:
        positions.append(base + len(data))
        data += make_record(position=base + len(data), **record)
    return data, positions


def keyed_message(
    queues: Sequence[int], body: bytes, *, keys: bytes = b"", unique: bytes = b"", topic: bytes = b"t", flags: int = 0
) -> Placed:
    """A message as a RocketMQ client's is stored."""
    properties = [(UNIQUE_KEY, unique)] if unique else []
    return placed(queues, body, flags=flags, topic=topic, keys=keys, properties=properties)


def found(store: LogStore, key: bytes, **question: Any) -> list[bytes]:
    """Bodies of the records of topic t (or another) with a key, the newest first."""
    assert store.keys is not None
    matches = store.keys.find(KeyQuestion(question.pop("topic", b"t"), key, **question))
    return [bytes(RecordView(record).body) for record in matches.records]
