"""The session as a whole: states, cuts of the input, arbitrary bytes, deadlines, misuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode, publish_head
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import (
    Acknowledged,
    ConnectRequested,
    Disconnected,
    Event,
    PublishBatch,
    SubscribeRequested,
    SubscriptionRequest,
    Violated,
)
from mqtt_proxy.mqtt.session.session import _TABLE, Session
from mqtt_proxy.mqtt.session.session_state import Status
from remoting.protocol.errors import LocalMisuse

CONNECT = packets.Connect("dev", True, 10, will=packets.Will(b"w", b"gone", 1, True))


def fresh(**limits: int) -> Session:
    return Session(SessionLimits(**limits), assigned_client_id=lambda: "made-1", opened_ms=1_000)


def connected(**limits: int) -> Session:
    session = fresh(**limits)
    assert isinstance(session.feed(encode(CONNECT), 1_000)[0], ConnectRequested)
    session.answers.accept(False)
    assert session.take_bytes() == b"\x20\x02\x00\x00"
    return session


def publish(packet_id: int, topic: bytes = b"a/b", qos: int = 1) -> packets.Publish:
    return packets.Publish(topic, b"x%d" % packet_id, qos, False, False, packet_id if qos else 0)


def flat(events: list[Event]) -> list[object]:
    """Events with runs of publishes and acknowledgements taken apart: what must not depend on how the input was cut."""
    out: list[object] = []
    acknowledged: list[object] = []
    for event in events:
        if isinstance(event, PublishBatch):
            out += event.publishes
        elif isinstance(event, Acknowledged):
            acknowledged += event.tokens
        else:
            out.append(event)
    return [*out, acknowledged]


def test_one_batch_per_run() -> None:
    """Acknowledgements and pings do not end a run of publishes; a SUBSCRIBE does."""
    session = connected()
    session.deliveries.deliver(b"t", b"", 1, False, False, "token")
    session.take_bytes()
    sent = [
        publish(1),
        packets.Puback(1),
        publish(2),
        packets.Pingreq(),
        publish(3, qos=0),
        packets.Subscribe(9, [("a", 2)]),
        publish(4),
    ]
    events = session.feed(b"".join(map(encode, sent)), 2_000)
    assert events == [
        PublishBatch([publish(1), publish(2), publish(3, qos=0)]),
        Acknowledged(["token"]),
        SubscribeRequested(9, [SubscriptionRequest("a", 2)]),
        PublishBatch([publish(4)]),
    ]
    assert session.take_bytes() == b"\xd0\x00"


PACKETS = st.lists(
    st.one_of(
        st.builds(publish, st.integers(1, 5), st.sampled_from([b"a", b"b/c", b"+", b"$x"]), st.integers(0, 2)),
        st.sampled_from(
            [packets.Pingreq(), packets.Puback(1), packets.Puback(7), packets.Pubrel(2), packets.Disconnect()]
        ),
        st.just(packets.Subscribe(3, [("a/#", 2), ("b", 0)])),
        st.just(packets.Unsubscribe(4, ["a/#"])),
        st.just(publish(9, b"long" * 60)),
        st.sampled_from([CONNECT, packets.Connack(False, 0), packets.Suback(1, [0])]),
    ),
    max_size=8,
)


def run(pieces: list[bytes]) -> tuple[list[object], bytes, str | None]:
    session = fresh()
    events: list[Event] = []
    output = b""
    for piece in pieces:
        new = session.feed(piece, 1_000)
        if session.state.status is Status.DECIDING:
            session.answers.accept(False)
            session.deliveries.deliver(b"t", b"", 1, False, False, "token")
            new = new + session.feed(b"", 1_000)
        events += new
        output += session.take_bytes()
    return flat(events), output, session.state.close_reason


@given(PACKETS, st.binary(max_size=6), st.lists(st.integers(1, 40), max_size=30))
def test_cutting_the_input_changes_nothing(sent: list[packets.Packet], junk: bytes, cuts: list[int]) -> None:
    """Whole, byte by byte, and in pieces of any size: the same events, output and end."""
    data = encode(CONNECT) + b"".join(map(encode, sent)) + junk
    whole = run([data])
    assert run([data[n : n + 1] for n in range(len(data))]) == whole
    pieces, position = [], 0
    for cut in cuts:
        pieces.append(data[position : position + cut])
        position += cut
    assert run([*pieces, data[position:]]) == whole


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
def test_any_bytes_never_raise(pieces: list[bytes], accepted: bool) -> None:
    """Before and after CONNECT; after a violation nothing more is reported."""
    session = connected() if accepted else fresh()
    for piece in pieces:
        was_closed = session.state.status is Status.CLOSED
        events = session.feed(piece, 2_000)
        if session.state.status is Status.DECIDING:
            session.answers.accept(False)
        assert not (was_closed and events)
        assert all(not isinstance(event, Violated | Disconnected) for event in events[:-1])


def test_input_after_connect_waits() -> None:
    """Nothing after an undecided CONNECT is read; after acceptance it is, after a refusal it never is."""
    for accepted in (True, False):
        session = fresh()
        assert len(session.feed(encode(CONNECT) + encode(publish(1)), 1_000)) == 1
        assert session.input_held
        assert session.feed(encode(publish(2)), 1_000) == []
        if accepted:
            session.answers.accept(False)
            assert session.feed(b"", 1_000) == [PublishBatch([publish(1), publish(2)])]
        else:
            session.answers.refuse(0x87)
            assert session.feed(b"", 1_000) == []
            assert session.take_bytes() == b"\x20\x02\x00\x05"
            assert not session.state.will_due
        assert not session.input_held


def test_input_after_connect_is_bounded() -> None:
    """More than the limit after an undecided CONNECT ends the session, in one piece or in many."""
    for piece in (70_000, 1_000):
        session = fresh()
        session.feed(encode(CONNECT), 1_000)
        events: list[Event] = []
        for _ in range(70_000 // piece):
            events += session.feed(bytes(piece), 1_000)
        assert [event.reason for event in events if isinstance(event, Violated)] == ["input_before_connack"]
        assert not session.state.will_due
    session = fresh()
    assert isinstance(session.feed(encode(CONNECT) + bytes(70_000), 1_000)[-1], Violated)


def test_a_large_packet_arrives_in_small_pieces() -> None:
    """The buffer grows to what is needed, and the packet is decoded once it is complete."""
    session = connected()
    data = encode(packets.Publish(b"a", bytes(100_000), 0, False, False, 0))
    for position in range(0, len(data) - 1, 1_000):
        assert session.feed(data[position : position + 1_000][: len(data) - 1 - position], 1_000) == []
    assert len(session.feed(data[-1:] + encode(publish(1)), 1_000)[0].publishes) == 2  # type: ignore[union-attr]


def test_a_large_packet_is_refused_by_its_header() -> None:
    """Before its body has arrived, both before and after CONNECT."""
    session = connected(packet_size_bytes_max=1_000)
    assert session.feed(b"\x30\xe9\x07", 1_000)[0].reason == "packet_too_large"  # type: ignore[union-attr]
    assert session.state.will_due
    session = fresh(unauthenticated_bytes_max=100)
    assert session.feed(b"\x10\x65", 1_000)[0].reason == "packet_too_large"  # type: ignore[union-attr]
    session = fresh()
    assert session.feed(b"\x30", 1_000) == []
    assert session.feed(b"\x05", 1_000)[0].reason == "unexpected_packet"  # type: ignore[union-attr]


def test_deadlines() -> None:
    """CONNECT in time, then a packet, or a part of one, every 1.5 keep-alives."""
    session = fresh(connect_deadline_ms=5_000)
    assert session.next_deadline_ms() == 6_000
    assert session.tick(5_999) == []
    assert session.tick(6_000)[0].reason == "connect_timeout"  # type: ignore[union-attr]
    session = connected()
    assert session.next_deadline_ms() == 16_000
    session.feed(b"\x30\x7f", 2_000)
    assert session.next_deadline_ms() == 17_000
    session.feed(bytes(5), 9_000)
    assert session.next_deadline_ms() == 24_000
    session.feed(b"\x00", 9_500)
    assert session.next_deadline_ms() == 24_500
    session.excuse_silence(10_000)
    assert session.tick(24_999) == []
    assert session.tick(25_000)[0].reason == "keep_alive_timeout"  # type: ignore[union-attr]
    assert session.state.will_due
    assert session.next_deadline_ms() is None


def test_deliveries_and_window() -> None:
    """The window fills, acknowledgements free it, QoS 0 does not need it."""
    session = connected(in_flight_max=2)
    assert [session.deliveries.deliver(b"t", b"p", 1, True, False, n) for n in range(2)] == [1, 2]
    assert session.deliveries.window_free == 0
    with pytest.raises(LocalMisuse):
        session.deliveries.deliver(b"t", b"p", 1, False, False, 3)
    assert session.deliveries.deliver(b"t", memoryview(b"p"), 0, False, False, None) == 0
    assert session.deliveries.deliver_prepared(publish_head(b"t", 1, 0, False), b"p", 0, None) == 0
    assert session.deliveries.inflight() == [(1, 0, 0), (2, 1, 0)]
    assert session.take_bytes() == (
        b"\x33\x06\0\x01t\0\x01p" + b"\x33\x06\0\x01t\0\x02p" + b"\x30\x04\0\x01tp" + b"\x30\x04\0\x01tp"
    )
    assert session.take_bytes() == b""
    assert session.feed(encode(packets.Puback(2)), 2_000) == [Acknowledged([1])]
    assert session.deliveries.window_free == 1


def test_resume() -> None:
    """What was in flight is sent again with DUP and its id, in order; what no longer exists is forgotten."""
    session = fresh()
    session.feed(encode(packets.Connect("dev", False, 0)), 1_000)
    session.answers.accept(True, [(7, "old", 0), (3, "older", 0), (5, "gone", 0)], received_ids=[9])
    session.deliveries.redeliver(7, b"t", b"p", 1, False, "new")
    session.deliveries.redeliver(3, b"t", b"q", 1, False, "newer")
    session.deliveries.forget(5)
    assert session.take_bytes() == b"\x20\x02\x01\x00" + b"\x3a\x06\0\x01t\0\x07p" + b"\x3a\x06\0\x01t\0\x03q"
    assert session.deliveries.inflight() == [(7, "new", 0), (3, "newer", 0)]
    assert session.answers.received_ids() == [9]
    assert session.feed(encode(publish(9, qos=2)), 1_000) == []
    assert session.take_bytes() == encode(packets.Pubrec(9))
    assert session.next_deadline_ms() is None
    with pytest.raises(LocalMisuse):
        session.deliveries.redeliver(99, b"t", b"", 1, False, None)


def test_answers_need_their_state() -> None:
    """A call at the wrong time is a bug; answers that come after the end are ignored."""
    session = fresh()
    with pytest.raises(LocalMisuse):
        session.answers.accept(False)
    with pytest.raises(LocalMisuse):
        session.deliveries.deliver(b"t", b"", 0, False, False, None)
    session.feed(encode(CONNECT), 1_000)
    with pytest.raises(LocalMisuse):
        session.answers.accept(True)
    with pytest.raises(LocalMisuse):
        session.answers.refuse(0)
    session.answers.accept(False)
    session.close("taken_over")
    session.take_bytes()
    session.answers.acknowledge([1])
    session.answers.grant(1, [0])
    session.answers.unsubscribed(1)
    session.answers.accept(False)
    session.answers.refuse(0x88)
    session.deliveries.redeliver(1, b"t", b"", 1, False, None)
    assert session.deliveries.deliver(b"t", b"", 1, False, False, None) == 0
    assert session.take_bytes() == b""
    assert session.deliveries.inflight() == []
    assert session.state.close_reason == "taken_over"


def test_the_table_is_complete() -> None:
    """Each status has a row; server-to-client packets are in none."""
    assert set(_TABLE) == set(Status)
    allowed = {packet_type for row in _TABLE.values() for packet_type in row}
    assert allowed <= set(packets.PACKET_NAMES)
    assert not allowed & {packets.CONNACK, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP}
    assert list(_TABLE[Status.EXPECT_CONNECT]) == [packets.CONNECT]
    assert not _TABLE[Status.DECIDING]
    assert not _TABLE[Status.CLOSED]
