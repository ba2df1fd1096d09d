"""What a message's properties say about its time."""

from __future__ import annotations

import pytest

from broker.delayed.due import due_ms
from broker.publishing.append import image_message
from broker.publishing.placement import KIND_MQTT, KIND_QUEUE
from broker.store.store_message import StoreMessage
from remoting.protocol.errors import Refused
from remoting.protocol.records.image import encode_image, image_views

NOW = 1_000_000


def message(*properties: tuple[bytes, bytes]) -> StoreMessage:
    """A queue entry with these properties."""
    entry = encode_image(flags=0, queue_index=0, born_ms=1, topic=b"t", properties=properties, body=b"x")
    return image_message(image_views(b"".join([entry]))[0])


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [
        (b"TIMER_DELAY_MS", b"1500", NOW + 1_500),
        (b"TIMER_DELAY_SEC", b"3", NOW + 3_000),
        (b"TIMER_DELIVER_MS", b"5", 5),
        (b"DELAY", b"1", NOW + 1_000),
        (b"DELAY", b"4", NOW + 30_000),
        (b"DELAY", b"18", NOW + 7_200_000),
        (b"DELAY", b"99", NOW + 7_200_000),
        (b"DELAY", b"0", None),
        (b"delay-ms", b"5", None),
        (b"OTHER", b"TIMER_DELAY_MS", None),
    ],
)
def test_rocketmq_properties(key: bytes, value: bytes, due: int | None) -> None:
    """Relative ones count from now."""
    assert due_ms(message((b"first", b"x"), (key, value)), KIND_QUEUE, NOW) == due


def test_a_timer_property_goes_before_a_level() -> None:
    """And a delay before a time."""
    one = message((b"DELAY", b"2"), (b"TIMER_DELAY_SEC", b"7"), (b"TIMER_DELIVER_MS", b"9"))
    assert due_ms(one, KIND_QUEUE, NOW) == NOW + 7_000


def test_mqtt_has_its_own_property() -> None:
    """RocketMQ's names mean nothing there."""
    assert due_ms(message((b"delay-ms", b"250"), (b"DELAY", b"3")), KIND_MQTT, NOW) == NOW + 250
    assert due_ms(message((b"DELAY", b"3")), KIND_MQTT, NOW) is None


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"soon", b" 1", b"9" * 16, "٣".encode()])
def test_what_is_no_number_is_refused(value: bytes) -> None:
    """Never taken for now."""
    for key, kind in ((b"delay-ms", KIND_MQTT), (b"DELAY", KIND_QUEUE), (b"TIMER_DELIVER_MS", KIND_QUEUE)):
        with pytest.raises(Refused, match=key.decode()):
            due_ms(message((key, value)), kind, NOW)
