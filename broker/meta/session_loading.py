"""All durable sessions as the state tables say them, for the start of a broker.

Invariant: the same tables give the same sessions, whatever order they are read in. Pure but for the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.meta.session_record import (
    Session,
    load_session,
    split_block_key,
    split_offset_key,
    unpack_inflight,
    unpack_offset,
    unpack_received,
)
from broker.store import state_kinds

if TYPE_CHECKING:
    from broker.store.state_tables import StateTables


def load_sessions(state: StateTables, next_epoch: Callable[[], int], now_ms: int) -> dict[str, Session]:
    """Client id -> session; parts of sessions that are not there are passed over."""
    sessions: dict[str, Session] = {}
    for key, (value, position) in state.items(state_kinds.SESSION):
        client_id = bytes(key).decode()
        session = sessions[client_id] = load_session(client_id, value, epoch=next_epoch(), now_ms=now_ms)
        session.position = position
    for key, (value, position) in state.items(state_kinds.SESSION_OFFSET):
        client_id, queue_id = split_offset_key(bytes(key))
        if client_id in sessions:
            _load_offset(sessions[client_id], queue_id, value, position)
    for key, (value, _position) in state.items(state_kinds.SESSION_INFLIGHT):
        client_id, _block = split_block_key(bytes(key))
        if client_id in sessions:
            session = sessions[client_id]
            session.exact = (session.exact or {}) | unpack_inflight(value)
    for key, (value, _position) in state.items(state_kinds.SESSION_RECEIVED):
        client_id, block = split_block_key(bytes(key))
        if client_id in sessions:
            session = sessions[client_id]
            session.received = (session.received or {}) | {block: unpack_received(value)}
    return sessions


def _load_offset(session: Session, queue_id: int, value: bytes, position: int) -> None:
    offset, exact_below = unpack_offset(value)
    session.offsets[queue_id] = offset
    if exact_below:
        session.exact_below = (session.exact_below or {}) | {queue_id: exact_below}
    if position > session.position:  # acknowledged after the list was written
        session.inflight = [e for e in session.inflight if e[1] != queue_id or e[2] >= offset]
