"""QoS 2 packet ids of a session, both directions: what is noted at each step, and what a restart reads back.

Outbound: a packet id names its message before the PUBLISH leaves, PUBREC is noted before the PUBREL, PUBCOMP frees the
id. So whoever takes the session over repeats exactly the step that may be missing. Inbound: an id is noted in the same
group as its message and forgotten before its PUBCOMP; a repeated PUBLISH in between is known.
Messages that were completed leave nothing but a number per queue, the end of what was ever sent with QoS 2.

Invariant: the blocks in memory that are not empty are the records in the log. Every step may be said again: the same
flow twice gives the same records. Pure functions on a `ClientSession`; loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.sessions.record import (
    INFLIGHT_BLOCK_SHIFT,
    RECEIVED_BLOCK_SHIFT,
    ClientSession,
    block_key,
    offset_key,
    pack_inflight,
    pack_offset,
    pack_received,
)
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from remoting.protocol.bodies.session_body import PHASE_PUBLISH, PHASE_PUBREL, SessionFlow

LOG_POSITION_QUEUE = 0xFFFF_FFFF
"""Queue id of a place that is a log position: a retained message."""
_MASK = (1 << RECEIVED_BLOCK_SHIFT) - 1


def advance(session: ClientSession, flow: SessionFlow) -> list[StateChange]:
    """Take the steps of a flow; the records to write."""
    changes = release(session, flow.released) if flow.released else []
    if not (flow.completed or flow.received or flow.reserved):
        return changes
    exact = session.exact
    if exact is None:
        exact = session.exact = {}
    for packet_id in flow.completed:
        exact.pop(packet_id, None)
    for packet_id in flow.received:
        queue_id, offset, _phase = exact.get(packet_id, (LOG_POSITION_QUEUE, 0, PHASE_PUBREL))
        exact[packet_id] = (queue_id, offset, PHASE_PUBREL)
    for packet_id, queue_id, offset in flow.reserved:
        exact.pop(packet_id, None)  # the order of the table is the order of sending
        exact[packet_id] = (queue_id, offset, PHASE_PUBLISH)
    ids = [*flow.completed, *flow.received, *[packet_id for packet_id, _queue, _offset in flow.reserved]]
    for block in dict.fromkeys([packet_id >> INFLIGHT_BLOCK_SHIFT for packet_id in ids]):
        changes.append(_inflight_change(session, block))
    changes += _raise_ends(session, flow.reserved)
    if not exact:
        session.exact = None
    return changes


def receive(session: ClientSession, packet_ids: Iterable[int]) -> list[StateChange]:
    """Note publishes taken; the records to write in the group of their messages."""
    received = session.received
    if received is None:
        received = session.received = {}
    blocks: dict[int, None] = {}
    for packet_id in packet_ids:
        block = packet_id >> RECEIVED_BLOCK_SHIFT
        received[block] = received.get(block, 0) | 1 << (packet_id & _MASK)
        blocks[block] = None
    return [_received_change(session, block) for block in blocks]


def release(session: ClientSession, packet_ids: Iterable[int]) -> list[StateChange]:
    """Forget publishes taken: their PUBREL came, or they were not stored after all."""
    received = session.received or {}
    blocks: dict[int, None] = {}
    for packet_id in packet_ids:
        block = packet_id >> RECEIVED_BLOCK_SHIFT
        bits = received.get(block, 0) & ~(1 << (packet_id & _MASK))
        if bits:
            received[block] = bits
        else:
            received.pop(block, None)
        blocks[block] = None
    session.received = received or None
    return [_received_change(session, block) for block in blocks]


def is_received(session: ClientSession, packet_id: int) -> bool:
    """Whether a publish of this id was taken and not released."""
    if session.received is None:
        return False
    return bool(session.received.get(packet_id >> RECEIVED_BLOCK_SHIFT, 0) >> (packet_id & _MASK) & 1)


def received_ids(session: ClientSession) -> list[int]:
    """The packet ids taken and not released, in rising order."""
    return [
        block << RECEIVED_BLOCK_SHIFT | bit
        for block, bits in sorted((session.received or {}).items())
        for bit in range(1 << RECEIVED_BLOCK_SHIFT)
        if bits >> bit & 1
    ]


def forget(session: ClientSession) -> list[StateChange]:
    """The session ends: delete all its blocks."""
    blocks = dict.fromkeys([packet_id >> INFLIGHT_BLOCK_SHIFT for packet_id in session.exact or ()])
    changes = [StateChange(state_kinds.SESSION_INFLIGHT, block_key(session.client_id, block), None) for block in blocks]
    changes += [
        StateChange(state_kinds.SESSION_RECEIVED, block_key(session.client_id, block), None)
        for block in session.received or ()
    ]
    session.exact = session.received = None
    return changes


def _inflight_change(session: ClientSession, block: int) -> StateChange:
    value = pack_inflight(session.exact or {}, block)
    return StateChange(state_kinds.SESSION_INFLIGHT, block_key(session.client_id, block), value or None)


def _received_change(session: ClientSession, block: int) -> StateChange:
    bits = (session.received or {}).get(block)
    value = None if bits is None else pack_received(bits)
    return StateChange(state_kinds.SESSION_RECEIVED, block_key(session.client_id, block), value)


def _raise_ends(session: ClientSession, reserved: list[tuple[int, int, int]]) -> list[StateChange]:
    ends = session.exact_below or {}
    moved = {}
    for _packet_id, queue_id, offset in reserved:
        if queue_id in session.offsets and offset >= ends.get(queue_id, 0):
            ends[queue_id] = moved[queue_id] = offset + 1
    session.exact_below = ends or None
    return [
        StateChange(
            state_kinds.SESSION_OFFSET,
            offset_key(session.client_id, queue_id),
            pack_offset(session.offsets[queue_id], end),
        )
        for queue_id, end in moved.items()
    ]
