"""The lowest unacknowledged offset, whatever the order of acknowledgements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.delivery.record_cache import Chunk, Feed
from mqtt_proxy.delivery.source import ExactRange, Source, send_run, settle
from mqtt_proxy.grants import grant_of
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.topic_names import OutgoingAliases
from tests.support.records import make_mqtt_record


def source(queue_id: int, cursor: int, serial: int = 1) -> Source:
    """A source at `cursor`."""
    return Source("f", Feed(queue_id), grant_of(1), cursor, serial)


@given(st.permutations(range(10, 20)), st.integers(0, 10))
def test_lowest_is_the_first_hole(order: list[int], count: int) -> None:
    """Compared with the definition."""
    one = source(1, 10)
    for offset in range(10, 20):
        one.unacked[offset] = None
    one.cursor = 20
    for offset in order[:count]:
        one.acknowledge(offset)
    assert one.lowest() == min(set(range(10, 21)) - set(order[:count]))
    one.acknowledge(99)
    DeliveryOrigin(7).acknowledge(1)


def test_a_copy_left_to_another_source_is_unacknowledged_until_that_one_is() -> None:
    """So that neither offset passes the message."""
    older, younger = source(1, 5, 1), source(2, 8, 2)
    older.unacked[5] = None
    older.cursor = 6
    younger.leave_to(older, 8, 5)
    younger.cursor = 9
    assert (older.lowest(), younger.lowest()) == (5, 8)
    older.acknowledge(5)
    assert (older.lowest(), younger.lowest()) == (6, 9)
    younger.leave_to(older, 9, 5)
    assert younger.unacked == {}


def test_what_went_out_with_qos_2_is_passed_and_holds_the_offset_while_in_flight() -> None:
    """After a crash the cursor is back at the committed offset."""
    one = source(1, 10)
    one.exact = ExactRange(11, 14)
    one.sent_before(9)
    one.sent_before(12)
    one.sent_before(13)
    assert one.lowest() == 9
    one.acknowledge(9)
    one.acknowledge(13)
    assert one.lowest() == 10
    assert [one.is_exact(offset) for offset in range(10, 15)] == [False, True, True, True, False]
    one.cursor = 15
    assert one.lowest() == 12
    one.acknowledge(12)
    assert one.lowest() == 15


def test_an_acknowledgement_ahead_of_the_cursor_is_not_forgotten() -> None:
    """In whatever order acknowledgements are settled."""
    one = source(1, 10)
    one.exact = ExactRange(0, 12)
    one.sent_before(11)
    assert settle([(one, 11)]) == 1
    assert one.is_exact(10)
    assert one.is_exact(11)
    one.cursor = 12
    assert one.lowest() == 12


def subscription(queue_id: int, *unacked: int) -> Source:
    made = Source("t", Feed(queue_id), grant_of(1), 0, queue_id)
    made.unacked = dict.fromkeys(unacked)
    return made


def test_settle() -> None:
    one, two = subscription(1, 4, 5, 6), subscription(2, 4, 5)
    assert settle([]) == 0
    assert settle([(one, 5), (two, 4), (one, 4), (DeliveryOrigin(9), 1), (one, 99)]) == 5
    assert (list(one.unacked), list(two.unacked)) == ([6], [5])


def test_settle_takes_copies_in_younger_sources_along() -> None:
    one, two = subscription(1, 4), subscription(2)
    two.leave_to(one, 8, 4)
    assert list(two.unacked) == [8]
    assert settle([(one, 4)]) == 1
    assert not one.unacked
    assert not two.unacked


AMPLE = 1 << 20


def session(in_flight_max: int = 10) -> Session:
    return Session(SessionLimits(in_flight_max=in_flight_max), assigned_client_id=lambda: "made")


def chunk_of(count: int, flags: int) -> Chunk:
    return Chunk(Feed(1), 100, memoryview(make_mqtt_record(b"t", b"xy", flags=flags) * count))


def source_at(chunk: Chunk, qos: int = 1, cursor: int = 100) -> Source:
    return Source("t", chunk.feed, grant_of(qos), cursor, 1)


def test_qos_1_moves_cursor_and_window() -> None:
    chunk, one = chunk_of(3, 9), session(2)
    reader = source_at(chunk)
    assert send_run(one.state, reader, chunk, 10, AMPLE) == (2, 4, False)
    assert (reader.cursor, list(reader.unacked), one.state.outgoing.window) == (
        102, [100, 101], {1: (reader, 100), 2: (reader, 101)},
    )  # fmt: skip
    assert one.take_bytes() == b"\x32\x07\x00\x01t\x00\x01xy\x32\x07\x00\x01t\x00\x02xy"
    assert send_run(one.state, reader, chunk, 10, AMPLE) == (0, 0, False)
    one.state.outgoing.window.clear()
    assert send_run(one.state, reader, chunk, 10, AMPLE) == (1, 2, False)
    assert one.take_bytes()[-4:-2] == b"\x00\x03"
    assert chunk.shared is None


def test_qos_0_packets_are_made_once() -> None:
    chunk = chunk_of(3, 8)
    sessions = [session() for _ in range(3)]
    for one in sessions:
        assert send_run(one.state, source_at(chunk), chunk, 10, AMPLE) == (3, 6, False)
    assert sessions[0].state.out[0] is sessions[1].state.out[0] is sessions[2].state.out[0]
    late = session()
    assert send_run(late.state, source_at(chunk, cursor=101), chunk, 10, AMPLE) == (2, 4, False)
    assert late.take_bytes() == sessions[0].take_bytes()[7:]


def test_a_full_window_stops_one_session_only() -> None:
    """What one session could not send because of its window is not taken for what the next one sends."""
    records = make_mqtt_record(b"t", b"x", flags=8) + make_mqtt_record(b"t", b"y", flags=9)
    chunk = Chunk(Feed(1), 100, memoryview(records))
    full, free = session(1), session()
    full.state.outgoing.assign(None)
    assert send_run(full.state, source_at(chunk), chunk, 10, AMPLE) == (1, 1, False)
    assert send_run(free.state, source_at(chunk), chunk, 10, AMPLE) == (2, 2, False)


def test_an_unusual_record_stops_the_run() -> None:
    records = make_mqtt_record(b"t", b"x", flags=8) + make_mqtt_record(b"t", b"y", flags=8, keys=b"k")
    special = Chunk(Feed(1), 100, memoryview(records + make_mqtt_record(b"t", b"z", flags=0)))
    reader = source_at(special)
    assert send_run(session().state, reader, special, 10, AMPLE) == (2, 2, True)
    assert reader.cursor == 102


def test_levels_do_not_share_and_special_sessions_do_not_run() -> None:
    """MQTT 5 adds a property length to each packet; with a packet limit or topic aliases each one must be examined."""
    chunk = chunk_of(1, 8)
    old, new, small, aliasing = (session() for _ in range(4))
    for one in (new, small, aliasing):
        one.state.terms.level = 5
    small.state.terms.packet_size_out_max = 100
    aliasing.state.outgoing.aliases = OutgoingAliases(3)
    assert send_run(old.state, source_at(chunk), chunk, 10, AMPLE) == (1, 2, False)
    assert send_run(new.state, source_at(chunk), chunk, 10, AMPLE) == (1, 2, False)
    assert old.take_bytes() == b"\x30\x05\x00\x01txy"
    assert new.take_bytes() == b"\x30\x06\x00\x01t\x00xy"
    for one in (small, aliasing):
        assert send_run(one.state, source_at(chunk), chunk, 10, AMPLE) == (0, 0, True)
