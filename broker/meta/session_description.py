"""What a proxy is told when it takes a session: all there is to resume it from.

A session that was just made has nothing: that answer is short, because a fleet that connects asks for it the most.
Pure functions on a `Session`.
"""

from __future__ import annotations

from broker.meta import session_flow
from broker.meta.session_record import Session
from remoting.protocol.history_body import HISTORY_BIT
from remoting.protocol.session_body import InflightEntry, SessionOpened, SessionSubscription


def describe(session: Session, previous_epoch: int, *, present: bool) -> SessionOpened:
    """The answer to a SESSION_OPEN; `previous_epoch` is the one the session had before."""
    if not present:
        return SessionOpened(False, session.epoch, [], [], previous_epoch, expiry_s=session.expiry_s)
    ends = session.exact_below or {}
    exact = [InflightEntry(packet_id, *entry, qos=2) for packet_id, entry in (session.exact or {}).items()]
    return SessionOpened(
        present=True,
        epoch=session.epoch,
        subscriptions=[
            SessionSubscription(
                filter=topic_filter,
                qos=item.qos,
                queue_id=item.queue_id,
                offset=session.offsets.get(item.queue_id, 0),
                options=item.options,
                subscription_id=item.subscription_id,
                exact_from=item.exact_from,
                exact_below=ends.get(item.queue_id, 0),
                before=session.offsets.get(item.queue_id | HISTORY_BIT),
            )
            for topic_filter, item in session.subscriptions.items()
        ],
        inflight=[*[InflightEntry(*entry) for entry in session.inflight], *exact],
        previous_epoch=previous_epoch,
        received=session_flow.received_ids(session),
        expiry_s=session.expiry_s,
    )
