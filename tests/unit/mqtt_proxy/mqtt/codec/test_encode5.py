"""Answers of MQTT 5: the short forms, and the same bytes as the complete encoder."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import encode5, packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode import decode, split
from mqtt_proxy.mqtt.codec.encode import encode, publish_head
from remoting.protocol.records.mqtt_properties import MessageProperties


def test_nothing_to_say_is_left_out() -> None:
    """A plain acknowledgement has four bytes, a plain DISCONNECT two."""
    assert encode(packets.Puback(1), 5) == b"\x40\x02\x00\x01" == encode5.acknowledgement(0x40, 1, 0)
    assert encode5.disconnect(0) == b"\xe0\x00" == encode(packets.Disconnect(), 5)
    assert encode5.auth(0) == b"\xf0\x00"
    assert encode5.publish_properties(None) == b"\x00"


def test_answers_are_what_the_packets_encode_to() -> None:
    """CONNACK, SUBACK, UNSUBACK, PUBREL, DISCONNECT, AUTH with a reason."""
    why = encode5.reason_properties("why", [(b"a", b"b")])
    assert encode5.connack(True, 0, why) == encode(packets.Connack(True, 0, why), 5)
    assert encode5.suback(1, [0, 0x87], why) == encode(packets.Suback(1, [0, 0x87], why), 5)
    assert encode5.unsuback(1, [0x11], why) == encode(packets.Unsuback(1, [0x11], why), 5)
    assert encode5.acknowledgement(0x62, 1, 0x92, why) == encode(packets.Pubrel(1, 0x92, why), 5)
    assert encode5.disconnect(0x8E, why) == encode(packets.Disconnect(0x8E, why), 5)
    assert encode5.auth(0x18, {props.AUTH_METHOD: b"m"}) == encode(packets.Auth(0x18, {props.AUTH_METHOD: b"m"}), 5)


def test_what_is_left_of_an_expiry_takes_its_place() -> None:
    """The interval a receiver gets is shorter than what the publisher said; a message may have only that."""
    for properties in (MessageProperties(expiry_s=60), None):
        block = encode5.publish_properties(properties, expiry_left_s=7, alias=2, subscription_ids=(1, 2))
        found, _ = props.read(block, 0, packets.PUBLISH)
        assert found == {props.MESSAGE_EXPIRY: 7, props.TOPIC_ALIAS: 2, props.SUBSCRIPTION_ID: [1, 2]}


def test_a_head_of_level_5() -> None:
    """With an empty property block behind it the whole is the packet."""
    for qos, packet_id, size in ((0, 0, 3), (1, 7, 200), (2, 9, 0)):
        head = publish_head(b"a/b", size, qos, True, False, 5)
        behind = packet_id.to_bytes(2, "big") + b"\x00" if qos else b""
        sent = packets.Publish(b"a/b", bytes(size), qos, True, False, packet_id)
        assert head + behind + bytes(size) == encode(sent, 5)
        assert decode(*split(head + behind + bytes(size)), 5) == sent
