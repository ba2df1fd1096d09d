"""MQTT sessions as one feature: their table, what proxies ask of it for their clients, and what operators are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.requests.tools import Feature, RequestTools
from broker.sessions.listing import SessionListRequests
from broker.sessions.requests import Handovers, SessionRequests
from broker.shared.feature import SESSION_ENDED

if TYPE_CHECKING:
    from broker.publishing.append import Appender
    from broker.retained.retained import Retained
    from broker.sessions.sessions import Sessions
    from broker.shared.feature import SharedFeature
    from broker.topics.topics import VisibleQueues
    from broker.wills.feature import WillVerdicts
    from remoting.transport.contracts import Handler


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
        self._requests = SessionRequests(
            tools,
            sessions=sessions,
            retained=retained,
            shared=shared,
            verdicts=verdicts,
            handovers=self._handovers,
            appender=appender,
        )
        self._listing = SessionListRequests(tools, sessions=sessions, visible=visible)

    def handlers(self) -> dict[int, Handler]:
        """Sessions, subscriptions, QoS 2 and offsets, and SESSION_LIST."""
        return self._requests.handlers() | self._listing.handlers()

    def stop(self) -> None:
        """Wait for no proxy any more."""
        self._handovers.stop()

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
