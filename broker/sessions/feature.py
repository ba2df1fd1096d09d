"""MQTT sessions as one feature: their table, the requests of proxies for their clients, and those of operators.

SESSION_LIST (9019): which MQTT sessions there are and how far each has read, as JSON for operators.

Fields: `client` asks for one session with its subscriptions; else `after` and `limit` page through all whose client id
has the text `contains`, of the user `user` and the state `state` (`connected` or `away`) where these are given, by
client id: `matching` of `total`.
A session's backlog is what its own subscriptions have not been given, `shared_backlog` what waits in the groups of its
shared subscriptions, for any of their members; `removed` is what it will never be given, by reason:
`retention` counts what lies before the oldest message kept, the others were reported by proxies. Reads only.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.requests import Feature, RequestTools
from broker.retained.search import RetainedSearches
from broker.sessions.requests import Handovers, SessionRequests
from broker.sessions.sessions import NEVER_S, due_ms
from broker.shared.feature import SESSION_ENDED
from remoting.access.rights import MONITOR, SESSION
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.requests import RequestTools
    from broker.retained.feature import Retained
    from broker.sessions.client_session import ClientSession
    from broker.sessions.sessions import Sessions
    from broker.shared.feature import SharedFeature
    from broker.shared.groups import SharedGroups
    from broker.topics.topics import VisibleQueues
    from broker.wills.feature import WillVerdicts
    from remoting.transport.contracts import Handler


LIMIT_MAX = 1_000
"""Most sessions in one answer; `more` says that there are others."""
AWAY = "away"
STATES = ("connected", AWAY)


class SessionListRequests:
    """Shows operators which sessions there are."""

    def __init__(
        self, tools: RequestTools, *, sessions: Sessions, visible: VisibleQueues, shared: SharedGroups
    ) -> None:
        self._authorizer = tools.authorizer
        self._store = tools.store
        self._sessions = sessions
        self._visible = visible
        self._shared = shared

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.SESSION_LIST: self.session_list,
        }

    def session_list(self, peer: Peer, command: Command) -> Command:
        """One session in detail, or a page of all. Raises Refused for a client id without a session."""
        client_id = command.fields.get("client")
        if client_id is not None:
            self._authorizer.authorize(peer, command, SESSION, client_id)
            session = self._sessions.get(client_id)
            if session is None:
                raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no session of client id {client_id!r}")
            return command.reply(body=_json({"session": self._detail(session)}))
        self._authorizer.authorize(peer, command, MONITOR, "sessions")
        after, limit = command.fields.get("after", ""), _limit(command)
        matching = self._matching(command.fields)
        found = heapq.nsmallest(
            limit + 1, (one for one in matching if one.client_id > after), key=lambda one: one.client_id
        )
        page = [self._summary(session) for session in found[:limit]]
        answer = {"sessions": page, "total": len(self._sessions), "more": len(found) > limit}
        answer["matching"] = len(matching)
        return command.reply(body=_json(answer))

    def _matching(self, fields: Mapping[str, str]) -> Sessions | list[ClientSession]:
        """The sessions that are asked for."""
        contains, user, state = (fields.get(name, "") for name in ("contains", "user", "state"))
        if state not in ("", *STATES):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"state is {' or '.join(STATES)}, not {state!r}")
        if not (contains or user or state):
            return self._sessions
        return [
            one
            for one in self._sessions
            if contains in one.client_id
            and (not user or one.user == user)
            and (not state or (one.owner is None) is (state == AWAY))
        ]

    def _summary(self, session: ClientSession) -> dict[str, Any]:
        places = [self._place(session, item.queue_id) for item in session.subscriptions.values()]
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
            "shared_backlog": sum(map(self._shared_backlog, session.subscriptions)),
            "removed": removed,
        }

    def _detail(self, session: ClientSession) -> dict[str, Any]:
        filters = []
        for topic_filter, item in session.subscriptions.items():
            backlog, lost = self._place(session, item.queue_id)
            filters.append(
                {
                    "filter": topic_filter,
                    "qos": item.qos,
                    "no_local": bool(item.options & 1),
                    "retain_as_published": bool(item.options & 2),
                    "subscription_id": item.subscription_id or None,
                    "queue": item.queue_id,
                    "offset": session.offsets.get(item.queue_id, self._visible.end(item.queue_id)),
                    "backlog": backlog,
                    "shared_backlog": self._shared_backlog(topic_filter),
                    "removed": lost,
                }
            )
        return self._summary(session) | {
            "filters": filters,
            "in_flight": len(session.exact or ()) + sum(1 for entry in session.inflight if entry[0]),
            "received": len(session.received_ids()),
            "wills": len(self._sessions.wills.of(session.client_id)),
        }

    def _shared_backlog(self, topic_filter: str) -> int:
        group = self._shared.get(topic_filter)
        return 0 if group is None else self._shared.behind(group).messages

    def _place(self, session: ClientSession, queue_id: int) -> tuple[int, int]:
        """(messages a subscription has not been given, messages it will never be given)."""
        try:
            oldest, end = self._store.reading.bounds(queue_id)
        except LocalMisuse:  # deleted; the proxy ends the session's connection when it reads there
            return 0, 0
        offset = session.offsets.get(queue_id, end)
        return max(0, end - max(offset, oldest)), max(0, oldest - offset)


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _limit(command: Command) -> int:
    text = command.fields.get("limit", "")
    if not text:
        return LIMIT_MAX
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"limit {text!r} is no number from 1 on")
    return min(int(text), LIMIT_MAX)


class SessionFeature(Feature):
    """What is kept for MQTT clients, and who owns it."""

    def __init__(
        self,
        tools: RequestTools,
        sessions: Sessions,
        *,
        retained: Retained,
        shared: SharedFeature,
        verdicts: WillVerdicts,
        appender: Appender,
        visible: VisibleQueues,
    ) -> None:
        self.table = sessions
        self._handovers = Handovers()
        self._searches = RetainedSearches(retained, tools.store)
        self._requests = SessionRequests(
            tools,
            sessions=sessions,
            retained=retained,
            searches=self._searches,
            shared=shared,
            verdicts=verdicts,
            handovers=self._handovers,
            appender=appender,
        )
        self._listing = SessionListRequests(tools, sessions=sessions, visible=visible, shared=shared.groups)

    def handlers(self) -> dict[int, Handler]:
        """Sessions, subscriptions, QoS 2 and offsets, and SESSION_LIST."""
        return self._requests.handlers() | self._listing.handlers()

    def stop(self) -> None:
        """Wait for no proxy any more."""
        self._handovers.stop()
        self._searches.stop()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """End the sessions whose expiry has come."""
        sessions = self.table
        ended = sessions.expire(now_ms)
        lost, sessions.shared_lost = sessions.shared_lost, 0
        return {"session_expired": ended, SESSION_ENDED: lost}

    def status(self) -> dict[str, int]:
        """How many sessions there are, for people and for the `$SYS` topics of proxies."""
        sessions = self.table
        return {
            "sessions": len(sessions),
            "clients_total": len(sessions),
            "clients_connected": sessions.connected,
            "clients_expired": sessions.expired,
        }
