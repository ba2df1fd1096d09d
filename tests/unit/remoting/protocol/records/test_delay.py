"""When images are due, by the properties of each protocol."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records.delay import due_ms, names_a_time
from remoting.protocol.records.image import encode_batch_image, encode_image
from remoting.protocol.records.record import FLAG_MQTT, RecordView

NOW = 1_000_000


def image(*properties: tuple[bytes, bytes], flags: int = 0) -> RecordView:
    """An image with these properties."""
    return RecordView(encode_image(flags=flags, born_ms=1, topic=b"t", properties=properties, body=b"x"))


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
    assert due_ms(image((b"first", b"x"), (key, value)), NOW) == due


def test_a_timer_property_takes_precedence_over_a_level() -> None:
    """And a delay over a time."""
    one = image((b"DELAY", b"2"), (b"TIMER_DELAY_SEC", b"7"), (b"TIMER_DELIVER_MS", b"9"))
    assert due_ms(one, NOW) == NOW + 7_000


def test_mqtt_has_its_own_property() -> None:
    """RocketMQ's names mean nothing there."""
    assert due_ms(image((b"delay-ms", b"250"), (b"DELAY", b"3"), flags=FLAG_MQTT), NOW) == NOW + 250
    assert due_ms(image((b"DELAY", b"3"), flags=FLAG_MQTT), NOW) is None


@pytest.mark.parametrize("value", [b"-1", b"1.5", b"soon", b" 1", b"9" * 16, "٣".encode()])
def test_what_is_not_a_number_is_refused(value: bytes) -> None:
    """It is never taken for now."""
    for key, flags in ((b"delay-ms", FLAG_MQTT), (b"DELAY", 0), (b"TIMER_DELIVER_MS", 0)):
        with pytest.raises(RemoteViolation, match=key.decode()):
            due_ms(image((key, value), flags=flags), NOW)


def test_only_the_names_of_its_protocol_name_a_time() -> None:
    """Neither values nor longer names do."""
    assert names_a_time(image((b"DELAY", b"0")))
    assert names_a_time(image((b"delay-ms", b"1"), flags=FLAG_MQTT))
    assert not names_a_time(image((b"delay-ms", b"1"), (b"DELAYED", b"DELAY")))
    assert not names_a_time(image((b"DELAY", b"1"), flags=FLAG_MQTT))
    batch = encode_batch_image(topic=b"DELAY", queue_index=0, born_ms=1, body=b"DELAY", count=2, codec=1)
    assert not names_a_time(RecordView(batch))
