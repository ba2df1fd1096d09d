from __future__ import annotations

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from mqtt_bridge.paho_client import from_paho, to_paho
from remoting.protocol.records.mqtt_properties import MessageProperties

FULL = MessageProperties(
    payload_format=1,
    expiry_s=9,
    content_type="tëxt".encode(),
    response_topic=b"r/1",
    correlation_data=b"\x00\xff",
    user=[(b"k", b"1"), (b"k", b"2"), (b"a", b"")],
)


def test_there_and_back_over_the_wire() -> None:
    packed = to_paho(FULL).pack()
    received = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    received.unpack(packed)  # type: ignore[no-untyped-call]
    assert from_paho(received) == FULL


def test_nothing_said() -> None:
    assert from_paho(None) is None
    assert from_paho(to_paho(MessageProperties())) is None


def test_a_pair_that_is_no_text_is_left_out() -> None:
    said = to_paho(MessageProperties(user=[(b"\xff", b"1"), (b"k", b"\xff"), (b"k", b"v")]))
    assert said.UserProperty == [("k", "v")]
