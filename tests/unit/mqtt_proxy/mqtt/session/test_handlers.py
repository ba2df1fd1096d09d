"""PUBLISH, the QoS 2 handshake, stray acknowledgements."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.session.events import Acknowledged, PublishBatch, Received, Released, Violated
from mqtt_proxy.mqtt.session.session import Session
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5


def send(session: Session, *sent: packets.Packet) -> list[object]:
    return list(session.feed(b"".join(map(encode, sent)), 0))


def test_qos_2_is_handed_on_once() -> None:
    """Through the whole handshake, with every step repeated."""
    session = connected()
    message = packets.Publish(b"a", b"m", 2, False, False, 7)
    again = packets.Publish(b"a", b"m", 2, False, True, 7)
    assert send(session, message, again) == [PublishBatch([message])]
    assert session.take_bytes() == b""
    session.answers.acknowledge([7])
    assert session.take_bytes() == encode(packets.Pubrec(7))
    assert send(session, again) == []
    assert session.take_bytes() == encode(packets.Pubrec(7))
    assert session.answers.received_ids() == [7]
    assert send(session, packets.Pubrel(7), packets.Pubrel(7)) == [Released([7])]
    assert session.take_bytes() == b""
    session.answers.complete([7])
    assert session.take_bytes() == encode(packets.Pubcomp(7))
    assert send(session, packets.Pubrel(7)) == []
    assert session.take_bytes() == encode(packets.Pubcomp(7))
    assert send(session, message) == [PublishBatch([message])]


def test_new_topics_and_long_payloads_take_the_complete_path() -> None:
    """The same events and acknowledgements as the hot loop."""
    session = connected()
    first = packets.Publish(b"a", bytes(40_000), 1, True, True, 1)
    second = packets.Publish(b"a", b"", 1, False, False, 2)
    assert send(session, first, second) == [PublishBatch([first, second])]
    session.answers.acknowledge([1, 2])
    assert session.take_bytes() == encode(packets.Puback(1)) + encode(packets.Puback(2))


def test_the_publishes_before_a_violation_count() -> None:
    """A malformed packet does not undo what came before it."""
    session = connected()
    good = packets.Publish(b"a", b"", 1, False, False, 1)
    events = send(session, good, packets.Publish(b"a/+", b"", 1, False, False, 2))
    assert events[0] == PublishBatch([good])
    assert isinstance(events[1], Violated)
    assert events[1].reason == "topic_name"


def test_stray_acknowledgements_are_counted() -> None:
    """PUBACK, PUBREC and PUBCOMP without a message in flight; the PUBREC is answered so that its sender can
    continue."""
    session = connected()
    session.deliveries.deliver(b"t", b"", 1, False, False, "token")
    events = send(
        session, packets.Puback(9), packets.Puback(1), packets.Pubrec(1), packets.Pubcomp(1), packets.Puback(1)
    )
    assert events == [Acknowledged(["token"])]
    assert session.state.outgoing.stray == 4
    assert session.take_bytes().endswith(encode(packets.Pubrel(1)))


def test_a_qos_2_delivery() -> None:
    """PUBLISH, PUBREC, PUBREL when the owner allows it, PUBCOMP; a repeated PUBREC repeats the PUBREL."""
    session = connected()
    assert session.deliveries.deliver(b"t", b"m", 2, False, False, "token") == 1
    assert session.take_bytes() == encode(packets.Publish(b"t", b"m", 2, False, False, 1))
    assert send(session, packets.Pubrec(1), packets.Pubrec(1)) == [Received(["token"], [1])]
    assert session.take_bytes() == b""
    session.deliveries.release([1])
    assert send(session, packets.Pubrec(1)) == []
    assert session.take_bytes() == encode(packets.Pubrel(1)) * 2
    assert session.deliveries.window_free == session.state.limits.in_flight_max - 1
    assert send(session, packets.Pubcomp(1)) == [Acknowledged(["token"])]
    assert session.deliveries.window_free == session.state.limits.in_flight_max


@pytest.mark.parametrize(("qos", "wrong"), [(1, packets.Pubrec(1)), (2, packets.Puback(1))])
def test_the_acknowledgement_of_the_other_qos_ends_it(qos: int, wrong: packets.Packet) -> None:
    """The client confuses what it received."""
    session = connected()
    session.deliveries.deliver(b"t", b"m", qos, False, False, "token")
    assert [event.reason for event in send(session, wrong)] == ["protocol_error"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    ("qos", "steps"),
    [
        (1, [packets.Pubcomp(1)]),
        (1, [packets.Pubrec(1)]),
        (2, [packets.Puback(1)]),
        (2, [packets.Pubcomp(1)]),
        (2, [packets.Pubrec(1), packets.Pubcomp(1)]),
    ],
)
def test_the_wrong_acknowledgement_ends_it(level: int, qos: int, steps: list[packets.Packet]) -> None:
    """It is a protocol error [4.3.2] [4.3.3] [4.13]; if it were ignored, a window of one would stay full for ever."""
    session = connected() if level == 4 else connected5({props.RECEIVE_MAXIMUM: 1})
    session.deliveries.deliver(b"t", b"", qos, False, False, "token")
    session.take_bytes()
    events = session.feed(b"".join(encode(packet, level) for packet in steps), 0)
    assert isinstance(events[-1], Violated)
    assert events[-1].reason == "protocol_error"
    if level == 5:
        goodbye = answers5(session)[-1]
        assert isinstance(goodbye, packets.Disconnect)
        assert goodbye.reason == 0x82
