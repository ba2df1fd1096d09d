"""How a session of MQTT 5 ends, and with which code."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import CLOSE_CODES, ReasonCode
from mqtt_proxy.mqtt.session.events import Disconnected, Violated
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.session_state import Status
from remoting.protocol.errors import LocalMisuse
from tests.unit.mqtt_proxy.mqtt.sessions import answers5, connected, connected5, deciding5, send5


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x30\x03\0\x01a", ReasonCode.MALFORMED_PACKET),
        (b"\x30\x80\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x20\x03\0\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x00\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x30\x05\0\x02a+\x00", ReasonCode.MALFORMED_PACKET),
        (b"\x82\x08\0\x01\0\0\x02a#\0", ReasonCode.MALFORMED_PACKET),
        (b"\x30\x07\0\x01a\x03\x23\0\x63", ReasonCode.TOPIC_ALIAS_INVALID),
        (b"\x30\xff\xff\xff\x7f", ReasonCode.PACKET_TOO_LARGE),
        (b"\x30\x03\0\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x30\x06\0\x01a\x02\x0b\x01", ReasonCode.PROTOCOL_ERROR),
        (b"\xf0\x00", ReasonCode.PROTOCOL_ERROR),
        (b"\xe0\x01\x8e", ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_a_broken_rule_is_answered_with_its_code(data: bytes, code: int) -> None:
    """DISCONNECT has the reason, and the will stays due."""
    session = connected5(topic_alias_maximum=9)
    events = session.feed(data, 0)
    assert isinstance(events[-1], Violated)
    (said,) = answers5(session)
    assert isinstance(said, packets.Disconnect)
    assert said.reason == code
    assert said.properties
    assert session.state.will_due


def test_before_acceptance_the_code_is_in_connack() -> None:
    """And the will is not published."""
    session = deciding5()
    session.feed(bytes(70_000), 0)
    (said,) = answers5(session)
    assert isinstance(said, packets.Connack)
    assert said.code == ReasonCode.UNSPECIFIED_ERROR
    assert not session.state.will_due


def test_silence() -> None:
    """0x8D after one and a half keep-alives."""
    session = connected5()
    assert session.tick(14_999) == []
    assert isinstance(session.tick(15_000)[0], Violated)
    assert answers5(session)[0].reason == ReasonCode.KEEP_ALIVE_TIMEOUT  # type: ignore[union-attr]


@pytest.mark.parametrize("reason", sorted(CLOSE_CODES))
def test_the_owner_closes(reason: str) -> None:
    """The first word of the reason decides the code; 3.1.1 gets none."""
    session = connected5()
    session.close(f"{reason}: because")
    assert answers5(session) == [packets.Disconnect(CLOSE_CODES[reason])]
    old = connected()
    old.close(reason)
    assert old.take_bytes() == b""


def test_a_broken_socket_gets_no_code() -> None:
    """There is no reader."""
    session = connected5()
    session.close("peer_closed")
    assert session.take_bytes() == b""
    assert session.state.will_due


def test_the_reason_string_is_left_out_above_the_packet_size() -> None:
    """When it would not fit."""
    session = connected5({props.MAXIMUM_PACKET_SIZE: 16})
    session.feed(b"\xf0\x00", 0)
    assert answers5(session) == [packets.Disconnect(ReasonCode.PROTOCOL_ERROR)]


def test_disconnect_with_the_will() -> None:
    """0x04 publishes it, 0 drops it; the session's expiry may be changed but not introduced."""
    session = connected5({props.SESSION_EXPIRY: 10})
    assert send5(session, packets.Disconnect(4, {props.SESSION_EXPIRY: 5})) == [Disconnected(4, 5, will_due=True)]
    assert session.state.will_due
    session = connected5()
    assert send5(session, packets.Disconnect()) == [Disconnected(0, None, will_due=False)]
    session = connected5()
    assert isinstance(send5(session, packets.Disconnect(0, {props.SESSION_EXPIRY: 5}))[0], Violated)
    assert session.state.will_due


def test_answers_need_their_state() -> None:
    """A call at the wrong time is a bug."""
    session = connected5()
    with pytest.raises(LocalMisuse, match="DECIDING"):
        session.state.expects(Status.DECIDING)
    session.close("x")
    assert not session.state.expects(Status.DECIDING)


def test_a_read_leaves_no_list_behind() -> None:
    """The input of a read is handed on with its events; between reads a session has no list ready for the next one."""
    session = connected()
    packet_id = session.deliveries.deliver(b"a", b"x", 1, False, False, "token")
    for data in (b"\x30\x04\0\x01ab", b"\x40\x02" + packet_id.to_bytes(2, "big"), b"\x82\x06\0\x01\0\x01a\0"):
        assert len(session.feed(data, 0)) == 1
        gathered = session.state.gathered
        assert [gathered.events, gathered.publishes, gathered.acknowledged] == [None] * 3
        assert [gathered.received, gathered.released] == [None] * 2


def test_deadlines_by_status() -> None:
    """CONNECT deadline, keep-alive times 1.5, none."""
    session = Session(SessionLimits(connect_deadline_ms=700), assigned_client_id=str, opened_ms=5)
    assert session.next_deadline_ms() == 705
    assert session.state.overdue() == ("connect_timeout", "no CONNECT within 700 ms")
    session.state.status = Status.DECIDING  # our own delay is not the client's
    assert session.next_deadline_ms() is None
    session.state.status = Status.AUTHENTICATING
    assert session.next_deadline_ms() == 705
    assert session.state.overdue() == ("connect_timeout", "no answer to the AUTH packet within 700 ms")
    session.state.status = Status.CONNECTED
    assert session.next_deadline_ms() is None
    session.state.terms.keep_alive_s = 3
    assert session.next_deadline_ms() == 4_505
    assert session.state.overdue()[0] == "keep_alive_timeout"
    session.close("x")
    assert session.next_deadline_ms() is None
