"""Saying a retained message again: what time has taken stays taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.upkeep.retention import expires_ms, republished
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY, RecordView
from tests.sim.stores import StoreBench, message


def retained(topic: bytes, *properties: tuple[bytes, bytes]) -> Placed:
    """A retained MQTT message with tags and these properties."""
    image = encode_image(
        flags=FLAG_MQTT | FLAG_RETAIN, queue_index=0, born_ms=5, topic=topic, keys=b"k", tags=b"tag",
        properties=((MQTT_TOPIC_KEY, topic), (CLIENT_ID_KEY, b"c"), *properties), body=b"body",
    )  # fmt: skip
    return Placed(image, [()])


def stored(bench: StoreBench, topic: bytes) -> RecordView:
    record = bench.store.reading.read_at(bench.store.state.get(state_kinds.RETAINED, topic)[1])
    return RecordView(record)


@pytest.mark.parametrize("left_s", [59, 1])
def test_the_interval_that_is_left_takes_its_place(tmp_path: Path, left_s: int) -> None:
    """Everything else is the same, byte for byte; a part of a second counts as one."""
    bench = StoreBench(tmp_path / "data")
    bench.store.append(retained(b"t", (b"a", b"1"), (b"mqttExpiry", b"60"), (b"a", b"2")))
    bench.settle()
    record = stored(bench, b"t")
    assert expires_ms(record) == record.store_ms + 60_000
    again = republished(record, record.store_ms + 60_000 - left_s * 1_000 + 1)
    bench.store.append(Placed(again, [()]))
    bench.settle()
    new = stored(bench, b"t")
    assert new.properties() == [
        (MQTT_TOPIC_KEY, b"t"), (CLIENT_ID_KEY, b"c"), (b"a", b"1"), (b"mqttExpiry", b"%d" % left_s), (b"a", b"2"),
    ]  # fmt: skip
    same = ("topic", "keys", "tags", "body", "born_ms", "flags")
    assert [bytes(getattr(new, name)) if name == "body" else getattr(new, name) for name in same] == [
        bytes(getattr(record, name)) if name == "body" else getattr(record, name) for name in same
    ]
    bench.close()


def test_what_has_expired_is_not_said_again(tmp_path: Path) -> None:
    """From the very millisecond on."""
    bench = StoreBench(tmp_path / "data")
    bench.store.append(retained(b"t", (b"mqttExpiry", b"60")), retained(b"u"))
    bench.settle()
    record = stored(bench, b"t")
    assert republished(record, record.store_ms + 59_999) is not None
    assert republished(record, record.store_ms + 60_000) is None
    assert expires_ms(stored(bench, b"u")) is None
    assert republished(stored(bench, b"u"), 2**50) is not None
    bench.close()


def test_retention_lets_no_retained_message_live_longer(tmp_path: Path) -> None:
    """Its file goes: the one that has expired goes with it, the other has what is left."""
    bench = StoreBench(tmp_path / "data", retention_ms=1_000)
    store = bench.store
    busy = store.queues.open(b"busy")
    store.append(retained(b"short", (b"mqttExpiry", b"1")), retained(b"long", (b"mqttExpiry", b"100")))
    bench.settle()
    until = expires_ms(stored(bench, b"long"))
    for number in range(400):
        store.append(message([busy], b"%06d" % number + bytes(100)))
        bench.clock.advance_ms(10)
    bench.settle()
    first_end = store._log.segments[0].end
    for _ in range(400):
        store.maintain(bench.clock.now_ms())
        bench.settle()
        store._site.thread.drain()
        if store.begin_position >= first_end:
            break
    assert store.begin_position >= first_end
    assert store.state.get(state_kinds.RETAINED, b"short") is None
    assert store.metrics()["retained_expired_total"] == 1
    record = stored(bench, b"long")
    assert record.position >= first_end
    assert until <= expires_ms(record) < until + 1_000
    bench.close()
