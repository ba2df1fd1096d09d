"""SESSION_LIST (9019): which MQTT sessions there are and how far each has read, as JSON for operators.

Fields: `client` asks for one session with its subscriptions; else `after` and `limit` page through all, by client id.
A session's backlog is what its subscriptions have not been given; `removed` is what it will never be given, by reason:
`retention` counts what lies before the oldest message kept, the others were reported by proxies. Reads only.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Any

from broker.api.access import ADMIN, SESSION
from broker.meta.session_expiry import NEVER_S, due_ms
from broker.meta.session_flow import received_ids
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker
    from broker.meta.session_record import Session

LIMIT_MAX = 1_000
"""Most sessions in one answer; `more` says that there are others."""


def session_list(broker: Broker, peer: Peer, command: Command) -> Command:
    """One session in detail, or a page of all. Raises Refused for a client id without a session."""
    client_id = command.fields.get("client")
    if client_id is not None:
        broker.authorizer.authorize(peer, command, SESSION, client_id)
        session = broker.sessions.get(client_id)
        if session is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no session of client id {client_id!r}")
        return command.reply(body=_json({"session": _detail(broker, session)}))
    broker.authorizer.authorize(peer, command, ADMIN, "sessions")
    after, limit = command.fields.get("after", ""), _limit(command)
    found = heapq.nsmallest(
        limit + 1, (one for one in broker.sessions if one.client_id > after), key=lambda one: one.client_id
    )
    page = [_summary(broker, session) for session in found[:limit]]
    answer = {"sessions": page, "total": len(broker.sessions), "more": len(found) > limit}
    return command.reply(body=_json(answer))


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _limit(command: Command) -> int:
    text = command.fields.get("limit", "")
    if not text:
        return LIMIT_MAX
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"limit {text!r} is no number from 1 on")
    return min(int(text), LIMIT_MAX)


def _summary(broker: Broker, session: Session) -> dict[str, Any]:
    places = [_place(broker, session, item.queue_id) for item in session.subscriptions.values()]
    removed = dict(session.removed or {})
    lost = sum(lost for _backlog, lost in places)
    if lost:
        removed["retention"] = removed.get("retention", 0) + lost
    connected = session.owner is not None
    return {
        "client": session.client_id,
        "user": session.user,
        "connected": connected,
        "expiry_s": session.expiry_s,
        "ends_ms": None if connected or session.expiry_s >= NEVER_S else due_ms(session),
        "subscriptions": len(session.subscriptions),
        "backlog": sum(backlog for backlog, _lost in places),
        "removed": removed,
    }


def _detail(broker: Broker, session: Session) -> dict[str, Any]:
    filters = []
    for topic_filter, item in session.subscriptions.items():
        backlog, lost = _place(broker, session, item.queue_id)
        filters.append(
            {
                "filter": topic_filter,
                "qos": item.qos,
                "no_local": bool(item.options & 1),
                "retain_as_published": bool(item.options & 2),
                "subscription_id": item.subscription_id or None,
                "queue": item.queue_id,
                "offset": session.offsets.get(item.queue_id, broker.visible_end(item.queue_id)),
                "backlog": backlog,
                "removed": lost,
            }
        )
    return _summary(broker, session) | {
        "filters": filters,
        "in_flight": len(session.exact or ()) + sum(1 for entry in session.inflight if entry[0]),
        "received": len(received_ids(session)),
        "wills": len(broker.sessions.wills.of(session.client_id)),
    }


def _place(broker: Broker, session: Session, queue_id: int) -> tuple[int, int]:
    """(messages a subscription has not been given, messages it will never be given)."""
    try:
        oldest, end = broker.store.bounds(queue_id)
    except LocalMisuse:  # deleted; the proxy ends the session's connection when it reads there
        return 0, 0
    offset = session.offsets.get(queue_id, end)
    return max(0, end - max(offset, oldest)), max(0, oldest - offset)
