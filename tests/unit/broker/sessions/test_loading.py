"""Sessions from the state tables, also from tables that an earlier version wrote."""

from __future__ import annotations

from itertools import count

import msgspec

from broker.sessions.client_session import (
    Subscription,
    block_key,
    load_sessions,
    offset_key,
    pack_inflight,
    pack_offset,
    pack_received,
)
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import StateTables


def load(*records: tuple[int, bytes, bytes]):
    tables = StateTables()
    for position, (kind, key, value) in enumerate(records):
        tables.apply(StateChange(kind, key, value), position)
    epochs = count(1)
    return load_sessions(tables, lambda: next(epochs), now_ms=50)


def test_records_of_the_former_layout_are_read() -> None:
    former = msgspec.msgpack.encode(["anna", 60, 7, [["a/+", 1, 9]], [[1, 9, 3], [0, 9, 5]]])
    sessions = load(
        (state_kinds.SESSION, b"c", former),
        (state_kinds.SESSION_OFFSET, offset_key("c", 9), pack_offset(3)),
    )
    session = sessions["c"]
    assert (session.user, session.expiry_s, session.closed_ms, session.durable) == ("anna", 60, 7, True)
    assert session.subscriptions == {"a/+": Subscription(1, 9)}
    assert session.inflight == [(1, 9, 3), (0, 9, 5)]
    assert session.offsets == {9: 3}


def test_blocks_of_packet_ids_are_restored_and_orphans_are_skipped() -> None:
    record = msgspec.msgpack.encode([None, 60, 0, [["a", 2, 9]], []])
    inflight = {1: (9, 3, 0), 17: (9, 4, 1)}
    sessions = load(
        (state_kinds.SESSION, b"c", record),
        (state_kinds.SESSION_OFFSET, offset_key("c", 9), pack_offset(3, 8)),
        (state_kinds.SESSION_INFLIGHT, block_key("c", 0), pack_inflight(inflight, 0)),
        (state_kinds.SESSION_INFLIGHT, block_key("c", 1), pack_inflight(inflight, 1)),
        (state_kinds.SESSION_RECEIVED, block_key("c", 2), pack_received(5)),
        (state_kinds.SESSION_INFLIGHT, block_key("gone", 0), pack_inflight(inflight, 0)),
        (state_kinds.SESSION_RECEIVED, block_key("gone", 0), pack_received(1)),
        (state_kinds.SESSION_OFFSET, offset_key("gone", 9), pack_offset(3)),
    )
    assert list(sessions) == ["c"]
    session = sessions["c"]
    assert session.closed_ms == 50
    assert session.exact == inflight
    assert session.exact_below == {9: 8}
    assert session.received == {2: 5}


def test_what_was_acknowledged_after_the_note_is_left_out() -> None:
    record = msgspec.msgpack.encode([None, 60, 7, [["a", 1, 9]], [[1, 9, 3], [2, 9, 4], [3, 8, 0]]])
    offset = (state_kinds.SESSION_OFFSET, offset_key("c", 9), pack_offset(4))
    session = (state_kinds.SESSION, b"c", record)
    assert load(session, offset)["c"].inflight == [(2, 9, 4), (3, 8, 0)]
    assert len(load(offset, session)["c"].inflight) == 3
