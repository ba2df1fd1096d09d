"""QoS 2 deliveries that a group has left to a durable session [MQTT-4.8.2-4], [MQTT-4.8.2-5].

A delivery a session has noted (`session_flow`) is its own: the group counts it as done, and the session finishes it or
takes it along when it ends. Its place has `SHARED_BIT` set. The note is in the log before the group's record says the
same, so after a crash the notes are read first: what a session has noted is not handed out.

Invariant: a noted place was given to nobody else since. Pure functions on sessions and groups; loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.protocol.bodies.session_body import PHASE_PUBLISH, SessionFlow
from remoting.protocol.bodies.shared_body import SHARED_BIT, is_shared_place
from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from broker.sessions.record import ClientSession
    from broker.shared.groups import SharedGroups
    from broker.store.log_store import LogStore


def begun(session: ClientSession, flow: SessionFlow) -> list[int]:
    """Packet ids of a flow that name a message of a group for the first time."""
    known = session.exact or {}
    return [
        packet_id
        for packet_id, queue_id, offset in flow.reserved
        if is_shared_place(queue_id) and known.get(packet_id, ())[:2] != (queue_id, offset)
    ]


def take_back(session: ClientSession, packet_ids: list[int]) -> None:
    """Their note could not be written, so nothing of them was sent: the group still has them."""
    for packet_id in packet_ids:
        if session.exact is not None:
            session.exact.pop(packet_id, None)
    session.exact = session.exact or None


def unfinished(session: ClientSession) -> int:
    """Messages of groups that the session's client may not have: lost when the session ends."""
    return sum(
        is_shared_place(queue_id) and phase == PHASE_PUBLISH
        for queue_id, _offset, phase in (session.exact or {}).values()
    )


def claim(session: ClientSession, groups: SharedGroups, store: LogStore) -> None:
    """After a start: what the session has noted is not handed out again.

    Of several groups on one queue it is the one the session is subscribed to; if it is subscribed to several, nobody
    knows, and the message goes to another member as one of QoS 1 would.
    """
    for place, offset, _phase in (session.exact or {}).values():
        if not is_shared_place(place):
            continue
        queue_id = place & ~SHARED_BIT
        found = list(groups.of_queue(queue_id))
        if len(found) > 1:
            own = [groups.get(name) for name in session.subscriptions]
            found = [group for group in found if group in own]
        if len(found) == 1:
            found[0].pass_over(offset, _end(store, queue_id))


def _end(store: LogStore, queue_id: int) -> int:
    try:
        return store.next_offset(queue_id)
    except LocalMisuse:
        return 0  # deleted meanwhile
