"""Messages to a client of MQTT 5: properties, aliases, sizes, QoS 2 in steps, resending within the Receive Maximum."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import publish_head
from mqtt_proxy.mqtt.session.deliveries import TOO_LARGE
from mqtt_proxy.mqtt.session.events import Acknowledged, Received
from mqtt_proxy.mqtt.session.session import Session
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.properties import MessageProperties
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5, deciding5, send5


def test_everything_a_message_can_carry() -> None:
    """Its properties, the remaining expiry, the identifiers of its subscriptions."""
    session = connected5()
    message = MessageProperties(1, 60, b"t", b"r", b"c", [(b"k", b"1"), (b"k", b"2")])
    assert session.deliveries.deliver(b"t/x", b"p", 1, True, False, "token", message, (3, 9), 41) == 1
    (sent,) = answers5(session)
    expected = MessageProperties(1, 41, b"t", b"r", b"c", [(b"k", b"1"), (b"k", b"2")])
    assert sent == packets.Publish(b"t/x", b"p", 1, True, False, 1, expected, 0, (3, 9))


def test_a_client_of_3_1_1_gets_the_message_alone() -> None:
    """The same call, without the properties, which it could not read."""
    session = connected()
    session.deliveries.deliver(b"t", b"p", 0, False, False, None, MessageProperties(1), (3,), 5)
    assert session.take_bytes() == b"\x30\x04\0\x01tp"


def test_prepared_heads_of_level_5() -> None:
    """The id and an empty property block are inserted."""
    session = connected5()
    for qos in (0, 1, 2):
        session.deliveries.deliver_prepared(publish_head(b"t", 1, qos, False, False, 5), b"p", qos, qos)
    assert answers5(session) == [
        packets.Publish(b"t", b"p", qos, False, False, packet_id) for qos, packet_id in ((0, 0), (1, 1), (2, 2))
    ]
    assert session.deliveries.is_plain


def test_aliases() -> None:
    """Name and number first, then the number; a message that is too large defines no alias."""
    session = connected5({props.TOPIC_ALIAS_MAXIMUM: 1, props.MAXIMUM_PACKET_SIZE: 30})
    assert not session.deliveries.is_plain
    assert session.deliveries.deliver(b"long/topic", bytes(50), 0, False, False, None) == TOO_LARGE
    for _ in range(2):
        session.deliveries.deliver(b"long/topic", b"p", 0, False, False, None)
    session.deliveries.deliver(b"other/topic", b"p", 0, False, False, None)
    assert answers5(session) == [
        packets.Publish(b"long/topic", b"p", 0, False, False, 0, None, 1),
        packets.Publish(b"", b"p", 0, False, False, 0, None, 1),
        packets.Publish(b"other/topic", b"p", 0, False, False, 0),
    ]


@pytest.mark.parametrize(("qos", "most"), [(0, 14), (1, 12)])
def test_the_largest_packet(qos: int, most: int) -> None:
    """[MQTT-3.1.2-24] to the byte, prepared or not; a larger packet is not sent and takes no id."""
    session = connected5({props.MAXIMUM_PACKET_SIZE: 20})
    head = publish_head(b"t", most, qos, False, False, 5)
    too_long = publish_head(b"t", most + 1, qos, False, False, 5)
    assert session.deliveries.deliver_prepared(head, bytes(most), qos, "x") != TOO_LARGE
    assert session.deliveries.deliver(b"t", bytes(most), qos, False, False, "x") != TOO_LARGE
    assert session.deliveries.deliver_prepared(too_long, bytes(most + 1), qos, "x") == TOO_LARGE
    assert session.deliveries.deliver(b"t", bytes(most + 1), qos, False, False, "x") == TOO_LARGE
    assert len(session.take_bytes()) == 40
    assert len(session.deliveries.inflight()) == (2 if qos else 0)


def test_the_receive_maximum_is_the_window() -> None:
    """[MQTT-3.3.4-9] QoS 2 counts until PUBCOMP, QoS 0 not at all."""
    session = connected5({props.RECEIVE_MAXIMUM: 2})
    assert session.deliveries.window_free == 2
    session.deliveries.deliver(b"t", b"", 1, False, False, "a")
    session.deliveries.deliver(b"t", b"", 2, False, False, "b")
    session.deliveries.deliver(b"t", b"", 0, False, False, None)
    assert send5(session, packets.Pubrec(2)) == [Received(["b"], [2])]
    session.deliveries.release([2])
    with pytest.raises(LocalMisuse):
        session.deliveries.deliver(b"t", b"", 1, False, False, "c")
    assert send5(session, packets.Pubcomp(2), packets.Puback(1, 0x10)) == [Acknowledged(["b", "a"])]
    assert session.deliveries.window_free == 2


def test_a_client_that_refuses_a_qos_2_message() -> None:
    """PUBREC with a code from 0x80 on ends the exchange; there is no PUBREL [4.3.3]."""
    session = connected5()
    session.deliveries.deliver(b"t", b"", 2, False, False, "a")
    session.take_bytes()
    assert send5(session, packets.Pubrec(1, 0x83)) == [Acknowledged(["a"])]
    assert session.take_bytes() == b""
    assert session.deliveries.inflight() == []
    send5(session, packets.Pubrec(1))
    assert answers5(session) == [packets.Pubrel(1, 0x92)]


def test_with_steps_every_qos_2_publish_is_parked() -> None:
    """However it was delivered; others go at once unless one is parked, whose place they keep."""
    session = connected5({props.TOPIC_ALIAS_MAXIMUM: 5})
    steps = session.deliveries.take_steps()
    session.deliveries.deliver(b"x", b"0", 0, False, False, None)
    assert answers5(session) == [packets.Publish(b"x", b"0", 0, False, False, 0)]
    assert session.deliveries.deliver(b"long/topic", b"1", 2, False, False, "a") == 1
    assert session.deliveries.deliver_prepared(publish_head(b"t", 1, 2, False, False, 5), b"2", 2, "b") == 2
    session.deliveries.deliver(b"long/topic", b"3", 1, False, False, "c")
    assert answers5(session) == []
    assert steps.take_reserved() == [(1, "a"), (2, "b")]
    assert steps.take_reserved() == []
    assert session.deliveries.inflight() == [(1, "a", 0), (2, "b", 0), (3, "c", 0)]
    session.deliveries.send_parked([2, 9])
    assert answers5(session) == []
    session.deliveries.send_parked([1])
    assert answers5(session) == [
        packets.Publish(b"long/topic", b"1", 2, False, False, 1),
        packets.Publish(b"t", b"2", 2, False, False, 2),
        packets.Publish(b"long/topic", b"3", 1, False, False, 3, None, 1),
    ]
    send5(session, packets.Pubrec(1), packets.Pubrec(2, 0x83))
    assert steps.take_finished() == [2]
    session.deliveries.release([1])
    send5(session, packets.Pubcomp(1))
    assert steps.take_finished() == [1]


def test_a_client_of_3_1_1_too() -> None:
    session = connected()
    steps = session.deliveries.take_steps()
    session.deliveries.deliver(b"t", b"m", 2, False, False, "a")
    assert session.take_bytes() == b""
    session.deliveries.send_parked([packet_id for packet_id, _token in steps.take_reserved()])
    assert session.take_bytes() == b"\x34\x06\0\x01t\0\x01m"
    session.deliveries.deliver(b"t", b"m", 2, False, False, "b")
    session.close("gone")
    session.deliveries.send_parked([2])
    assert session.take_bytes() == b""


def resumed(properties: dict[int, int], inflight: list[tuple[int, object, int]]) -> Session:
    session = deciding5(properties)
    session.state.terms.clean = False
    session.answers.accept(True, inflight)
    return session


def test_a_resumed_session() -> None:
    """[MQTT-4.4.0-1] PUBLISH again with DUP, PUBREL again without being asked; no aliases in what may have to wait."""
    session = resumed({props.TOPIC_ALIAS_MAXIMUM: 5}, [(5, "a", 0), (7, "b", 1), (9, "c", 0)])
    session.deliveries.redeliver(5, b"long/topic", b"x", 2, False, "A")
    session.deliveries.redeliver(9, b"long/topic", b"y", 1, False, "C", MessageProperties(1))
    assert answers5(session)[1:] == [
        packets.Pubrel(7),
        packets.Publish(b"long/topic", b"x", 2, False, True, 5),
        packets.Publish(b"long/topic", b"y", 1, False, True, 9, MessageProperties(1)),
    ]
    assert send5(session, packets.Pubcomp(7), packets.Pubrec(5)) == [Acknowledged(["b"]), Received(["A"], [5])]


def test_resending_keeps_within_the_receive_maximum() -> None:
    """The rest follows as acknowledgements come, in order."""
    session = resumed({props.RECEIVE_MAXIMUM: 1}, [(1, "a", 0), (2, "b", 0), (3, "c", 0)])
    for packet_id in (1, 2, 3):
        session.deliveries.redeliver(packet_id, b"t", b"%d" % packet_id, 1, False, packet_id)
    answers = answers5(session)[1:]
    assert [one.packet_id for one in answers] == [1]  # type: ignore[union-attr]
    assert session.deliveries.window_free == 0
    for packet_id in (1, 2):
        send5(session, packets.Puback(packet_id))
        assert [one.packet_id for one in answers5(session)] == [packet_id + 1]  # type: ignore[union-attr]


def test_a_resend_that_does_not_fit() -> None:
    """The new connection accepts smaller packets than the old one: reported, and forgotten."""
    session = resumed({props.MAXIMUM_PACKET_SIZE: 20}, [(1, "a", 0)])
    session.take_bytes()
    assert session.deliveries.redeliver(1, b"t", bytes(30), 1, False, "a") == TOO_LARGE
    assert session.deliveries.inflight() == []
    with pytest.raises(LocalMisuse):
        session.deliveries.redeliver(1, b"t", b"", 0, False, "a")
