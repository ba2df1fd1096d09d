"""CONNECT, PINGREQ, DISCONNECT."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import NEVER, ConnectRequested, Disconnected, Violated
from mqtt_proxy.mqtt.session.session import Session
from remoting.protocol.records.properties import MessageProperties

WILL = packets.Will(b"w/x", b"gone", 1, True)


def fresh() -> Session:
    return Session(SessionLimits(client_id_bytes_max=30), assigned_client_id=lambda: "made-1")


def test_all_fields_of_a_connect_are_handed_on() -> None:
    """Id, keep-alive, credentials, will."""
    session = fresh()
    sent = packets.Connect("dev", False, 77, username="ann", password=b"\0\xff", will=WILL)
    assert session.feed(encode(sent), 0) == [
        ConnectRequested("dev", False, 77, "ann", b"\0\xff", WILL, 4, server_made_id=False, session_expiry_s=NEVER)
    ]
    assert (session.state.terms.client_id, session.state.terms.keep_alive_s, session.state.will_due) == (
        "dev",
        77,
        False,
    )
    session.answers.accept(True)
    assert session.state.will_due


def test_an_empty_id_is_generated_here() -> None:
    """Only with a clean session."""
    session = fresh()
    event = session.feed(encode(packets.Connect("", True, 0)), 0)[0]
    assert isinstance(event, ConnectRequested)
    assert (event.client_id, event.server_made_id) == ("made-1", True)


@pytest.mark.parametrize("sent", [packets.Connect("", False, 0), packets.Connect("ä" * 16, True, 0)])
def test_rejected_ids(sent: packets.Connect) -> None:
    """Code 2 and the end."""
    session = fresh()
    assert [event.reason for event in session.feed(encode(sent), 0) if isinstance(event, Violated)] == ["client_id"]
    assert session.take_bytes() == b"\x20\x02\x00\x02"


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"\0\x04MQTT\x06", b"\x20\x03\x00\x84\x00"),
        (b"\0\x04MQTT\x03", b"\x20\x02\x00\x01"),
        (b"\0\x04MQTT\x83", b"\x20\x02\x00\x01"),
        (b"\0\x04MQTT\x86", b"\x20\x02\x00\x01"),
        (b"\0\x06MQIsdp\x84", b"\x20\x02\x00\x01"),
        (b"\0\x06MQIsdp\x03", b"\x20\x02\x00\x01"),
        (b"\0\x04mqtt\x04", b""),
    ],
)
def test_other_protocols(head: bytes, answer: bytes) -> None:
    """Another level is answered in its own layout, another protocol is closed without an answer."""
    session = fresh()
    body = head + b"\x02\0\0\0\0\x01a"
    assert isinstance(session.feed(bytes((0x10, len(body))) + body, 0)[-1], Violated)
    assert session.take_bytes() == answer


@pytest.mark.parametrize(
    ("head", "properties", "level"),
    [(b"\0\x06MQIsdp\x83", b"", 4), (b"\0\x04MQTT\x84", b"", 4), (b"\0\x04MQTT\x85", b"\0", 5)],
)
def test_bridges_are_known_by_the_high_bit(head: bytes, properties: bytes, level: int) -> None:
    """They are answered at the level without it."""
    session = fresh()
    body = head + b"\x02\0\0" + properties + b"\0\x01a"
    event = session.feed(bytes((0x10, len(body))) + body, 0)[-1]
    assert isinstance(event, ConnectRequested)
    assert (event.bridge, event.protocol_level, session.state.terms.bridge, session.state.terms.level) == (
        True,
        level,
        True,
        level,
    )
    sent = packets.Connect("a", True, 0, level=level, bridge=True)
    assert fresh().feed(encode(sent), 0)[-1].bridge  # type: ignore[union-attr]
    sent = packets.Connect("a", True, 0, level=level)
    assert not fresh().feed(encode(sent), 0)[-1].bridge  # type: ignore[union-attr]


def test_a_will_to_a_wildcard_is_refused() -> None:
    """The will topic is a topic name."""
    session = fresh()
    sent = packets.Connect("dev", True, 0, will=packets.Will(b"a/#", b"", 0, False))
    assert session.feed(encode(sent), 0)[-1].reason == "topic_name"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("delay", "taken"),
    [(b"1000", True), (b"0", True), (b"259200001", False), (b"soon", False), (b"-1", False), (b"1.5", False)],
)
def test_a_will_with_an_impossible_delay_is_refused(delay: bytes, taken: bool) -> None:
    """At CONNECT, because no client could be informed when it is due."""
    session = fresh()
    said = MessageProperties(user=[(b"delay-ms", delay)])
    sent = packets.Connect("dev", True, 9, will=packets.Will(b"w/x", b"", 1, False, said), level=packets.LEVEL_5)
    (event,) = session.feed(encode(sent), 0)
    assert isinstance(event, ConnectRequested if taken else Violated)
    if isinstance(event, Violated):
        assert event.reason == "delay"
        connack = session.take_bytes()
        assert (connack[0], connack[3]) == (0x20, 0x97)


def test_disconnect_drops_the_will_and_what_follows() -> None:
    """Nothing after DISCONNECT is read."""
    session = fresh()
    session.feed(encode(packets.Connect("dev", True, 9, will=WILL)), 0)
    session.answers.accept(False)
    session.take_bytes()
    sent = [packets.Pingreq(), packets.Disconnect(), packets.Pingreq()]
    assert session.feed(b"".join(map(encode, sent)), 0) == [Disconnected()]
    assert session.take_bytes() == b"\xd0\x00"
    assert (session.state.will_due, session.state.close_reason) == (False, "disconnect")
