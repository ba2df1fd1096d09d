"""Answers of MQTT 5: what CONNACK grants, codes on every acknowledgement, reason strings only for clients that want
them."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import ConnectRequested, Released, Violated
from mqtt_proxy.mqtt.session.session import Session
from remoting.protocol.errors import LocalMisuse
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5, deciding5, send5


def test_what_connack_grants() -> None:
    """Limits always, other properties where they differ from the request."""
    session = Session(SessionLimits(receive_maximum=9), assigned_client_id=lambda: "made-1")
    asked = packets.Connect("", False, 90, level=5, properties={props.SESSION_EXPIRY: 100})
    (event,) = session.feed(encode(asked), 0)
    assert isinstance(event, ConnectRequested)
    assert (event.session_expiry_s, event.server_made_id, event.protocol_level) == (100, True, 5)
    session.answers.accept(
        False, session_expiry_s=50, server_keep_alive_s=30, response_information="r/", user=[(b"a", b"b")]
    )
    (said,) = answers5(session)
    assert said == packets.Connack(
        False,
        0,
        {
            props.RECEIVE_MAXIMUM: 9,
            props.MAXIMUM_PACKET_SIZE: 1_048_576,
            props.TOPIC_ALIAS_MAXIMUM: 64,
            props.SESSION_EXPIRY: 50,
            props.SERVER_KEEP_ALIVE: 30,
            props.ASSIGNED_CLIENT_ID: b"made-1",
            props.RESPONSE_INFORMATION: b"r/",
            props.USER: [(b"a", b"b")],
        },
    )
    assert session.next_deadline_ms() == 45_000


def test_the_largest_accepted_packet_is_the_announced_one() -> None:
    """[MQTT-3.2.2-15] To the byte."""
    session = deciding5(packet_size_bytes_max=200)
    session.answers.accept(False)
    (said,) = answers5(session)
    announced = said.properties[props.MAXIMUM_PACKET_SIZE]  # type: ignore[union-attr, index]
    publish = packets.Publish(b"a", bytes(announced - 7), 0, False, False, 0)
    assert len(encode(publish, 5)) == announced
    assert not isinstance(send5(session, publish)[-1], Violated)
    publish.payload += b"x"
    assert isinstance(send5(session, publish)[-1], Violated)


def test_refusals() -> None:
    """[MQTT-3.2.2-8] The code itself at level 5, the nearest one at level 4."""
    session = deciding5()
    session.answers.refuse(ReasonCode.USE_ANOTHER_SERVER, reason_string="full", server_reference="other:1883")
    expected = {props.REASON_STRING: b"full", props.SERVER_REFERENCE: b"other:1883"}
    assert answers5(session) == [packets.Connack(False, 0x9C, expected)]
    assert session.state.close_reason == "connect_refused"
    for code, word in ((0x84, 1), (0x85, 2), (0x89, 3), (0x97, 3), (0x86, 4), (0x87, 5), (0x8C, 5)):
        old = Session(SessionLimits(), assigned_client_id=lambda: "made-1")
        old.feed(encode(packets.Connect("dev", True, 0)), 0)
        old.answers.refuse(code)
        assert old.take_bytes() == bytes((0x20, 2, 0, word))


def test_publishes_refused_in_order() -> None:
    """Each has a code, among those that are accepted."""
    session = connected5()
    send5(session, *[packets.Publish(b"a", b"", qos, False, False, n) for n, qos in ((1, 1), (2, 2), (3, 1))])
    session.answers.acknowledge([3])
    session.answers.refuse_publishes([2], ReasonCode.QUOTA_EXCEEDED, "much")
    session.answers.refuse_publishes([1], ReasonCode.NOT_AUTHORIZED)
    assert answers5(session) == [
        packets.Puback(1, 0x87),
        packets.Pubrec(2, 0x97, {props.REASON_STRING: b"much"}),
        packets.Puback(3),
    ]
    send5(session, packets.Pubrel(2))
    assert answers5(session) == [packets.Pubcomp(2, 0x92)]
    with pytest.raises(LocalMisuse):
        connected().answers.refuse_publishes([1], 0x87)
    with pytest.raises(LocalMisuse):
        connected().answers.say_unwanted([1])


def test_no_matching_subscribers() -> None:
    """A success with its own code; a QoS 2 exchange continues."""
    session = connected5()
    send5(session, *[packets.Publish(b"a", b"", qos, False, False, n) for n, qos in ((1, 1), (2, 2), (3, 1))])
    session.answers.say_unwanted([1, 2])
    session.answers.acknowledge([1, 2, 3])
    assert answers5(session) == [packets.Puback(1, 0x10), packets.Pubrec(2, 0x10), packets.Puback(3)]
    assert send5(session, packets.Pubrel(2)) == [Released([2])]


def test_no_reasons_for_clients_that_want_none() -> None:
    """[MQTT-3.1.2-29]: only CONNACK, PUBLISH and DISCONNECT may have them."""
    session = connected5({props.REQUEST_PROBLEM_INFORMATION: 0})
    send5(session, packets.Publish(b"a", b"", 1, False, False, 1))
    session.answers.refuse_publishes([1], 0x87, "why")
    session.answers.grant(5, [0x87], "why")
    session.answers.unsubscribed(6, [0x87], "why")
    session.answers.disconnect(ReasonCode.MESSAGE_RATE_TOO_HIGH, "why")
    assert answers5(session) == [
        packets.Puback(1, 0x87),
        packets.Suback(5, [0x87]),
        packets.Unsuback(6, [0x87]),
        packets.Disconnect(0x96, {props.REASON_STRING: b"why"}),
    ]
    assert session.state.close_reason == "ended_by_server"


def test_reasons_for_clients_that_want_them() -> None:
    """[MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.11.2-1] They are left out when they do not fit."""
    session = connected5({props.MAXIMUM_PACKET_SIZE: 20})
    session.answers.grant(5, [0, 0x87], "why")
    session.answers.grant(5, [0, 0x87], "w" * 30)
    session.answers.unsubscribed(5, [0, 0x11], "w" * 30)
    send5(session, *[packets.Publish(b"a", b"", qos, False, False, qos) for qos in (1, 2)])
    session.answers.refuse_publishes([1], 0x87, "w" * 30)
    session.answers.refuse_publishes([2], 0x87, "w" * 30)
    assert answers5(session) == [
        packets.Suback(5, [0, 0x87], {props.REASON_STRING: b"why"}),
        packets.Suback(5, [0, 0x87]),
        packets.Unsuback(5, [0, 0x11]),
        packets.Puback(1, 0x87),
        packets.Pubrec(2, 0x87),
    ]


def test_more_than_the_receive_maximum() -> None:
    """[MQTT-3.3.4-7] 0x93; QoS 0 and a repeated QoS 2 id do not count, and an answered one no longer does."""
    session = connected5(receive_maximum=2)
    first = packets.Publish(b"a", b"", 1, False, False, 1)
    second = packets.Publish(b"a", b"", 2, False, False, 2)
    third = packets.Publish(b"a", b"", 1, False, False, 3)
    assert len(send5(session, first, second, second, packets.Publish(b"a", b"", 0, False, False, 0))) == 1
    session.answers.acknowledge([1, 2])
    assert len(send5(session, third)) == 1
    assert send5(session, packets.Pubrel(2)) == [Released([2])]
    session.answers.acknowledge([3])
    session.answers.complete([2])
    assert len(send5(session, first, second)[0].publishes) == 2
    events = send5(session, third)
    assert isinstance(events[-1], Violated)
    assert answers5(session)[-1].reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED  # type: ignore[union-attr]


def test_a_client_whose_packet_limit_is_below_a_connack() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.2.2-19] it is refused in as few bytes as it accepts, or closed without an answer; nothing
    is delivered to it."""
    for packet_size_bytes_max, said in ((15, [packets.Connack(False, 0x95)]), (4, [])):
        session = deciding5({props.MAXIMUM_PACKET_SIZE: packet_size_bytes_max})
        session.answers.accept(False)
        assert answers5(session) == said
        assert session.state.close_reason == "connect_refused"
        assert session.deliveries.deliver(b"t", b"", 1, False, False, "x") == 0
        assert not session.state.will_due
    session = deciding5({props.MAXIMUM_PACKET_SIZE: 16})
    session.answers.accept(False, reason_string="welcome")
    assert len(session.take_bytes()) == 16
