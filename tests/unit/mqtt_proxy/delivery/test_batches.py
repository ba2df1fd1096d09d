"""Runs of plain messages: one write for many, the same bytes for many."""

from __future__ import annotations

from mqtt_proxy.delivery.batches import send_run
from mqtt_proxy.delivery.record_cache import Chunk, Feed
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.mqtt.session.topic_names import OutgoingAliases
from tests.support.records import make_mqtt_record

AMPLE = 1 << 20


def session(in_flight_max: int = 10) -> Session:
    return Session(SessionLimits(in_flight_max=in_flight_max), assigned_client_id=lambda: "made")


def chunk_of(count: int, flags: int) -> Chunk:
    return Chunk(Feed(1), 100, memoryview(make_mqtt_record(b"t", b"xy", flags=flags) * count))


def source(chunk: Chunk, qos: int = 1, cursor: int = 100) -> Source:
    return Source("t", chunk.feed, qos, cursor, 1)


def test_qos_1_moves_cursor_and_window() -> None:
    chunk, one = chunk_of(3, 9), session(2)
    reader = source(chunk)
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
        assert send_run(one.state, source(chunk), chunk, 10, AMPLE) == (3, 6, False)
    assert sessions[0].state.out[0] is sessions[1].state.out[0] is sessions[2].state.out[0]
    late = session()
    assert send_run(late.state, source(chunk, cursor=101), chunk, 10, AMPLE) == (2, 4, False)
    assert late.take_bytes() == sessions[0].take_bytes()[7:]


def test_a_full_window_is_one_sessions_own() -> None:
    """What one session could not send because of its window is not what the next one sends."""
    records = make_mqtt_record(b"t", b"x", flags=8) + make_mqtt_record(b"t", b"y", flags=9)
    chunk = Chunk(Feed(1), 100, memoryview(records))
    full, free = session(1), session()
    full.state.outgoing.assign(None)
    assert send_run(full.state, source(chunk), chunk, 10, AMPLE) == (1, 1, False)
    assert send_run(free.state, source(chunk), chunk, 10, AMPLE) == (2, 2, False)


def test_what_is_not_plain_stops_the_run() -> None:
    records = make_mqtt_record(b"t", b"x", flags=8) + make_mqtt_record(b"t", b"y", flags=8, keys=b"k")
    special = Chunk(Feed(1), 100, memoryview(records + make_mqtt_record(b"t", b"z", flags=0)))
    reader = source(special)
    assert send_run(session().state, reader, special, 10, AMPLE) == (2, 2, True)
    assert reader.cursor == 102


def test_levels_do_not_share_and_special_sessions_do_not_run() -> None:
    """MQTT 5 puts a property length into each packet; a small packet limit and topic aliases need a look at each."""
    chunk = chunk_of(1, 8)
    old, new, small, aliasing = (session() for _ in range(4))
    for one in (new, small, aliasing):
        one.state.terms.level = 5
    small.state.terms.packet_size_out_max = 100
    aliasing.state.outgoing.aliases = OutgoingAliases(3)
    assert send_run(old.state, source(chunk), chunk, 10, AMPLE) == (1, 2, False)
    assert send_run(new.state, source(chunk), chunk, 10, AMPLE) == (1, 2, False)
    assert old.take_bytes() == b"\x30\x05\x00\x01txy"
    assert new.take_bytes() == b"\x30\x06\x00\x01t\x00xy"
    for one in (small, aliasing):
        assert send_run(one.state, source(chunk), chunk, 10, AMPLE) == (0, 0, True)
