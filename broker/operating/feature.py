"""What operators look at and do, as one feature: clients, retained messages, topics, Spark queries, one message's way.

Each kind of request has a module of its own with its fields and answers. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.operating.clients import MqttClientRequests
from broker.operating.dead_letters import DeadLetterRequests
from broker.operating.group_list import GroupListRequests
from broker.operating.retained import RetainedRequests
from broker.operating.rules import RuleRequests
from broker.operating.spark_queries import SparkRequests
from broker.operating.topic_tree import TopicTreeRequests
from broker.operating.trace import TraceRequests
from broker.requests import Feature

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.lite.feature import LiteFeature
    from broker.publishing.append import Appender
    from broker.requests import RequestTools
    from broker.retained.feature import Retained
    from broker.sessions.sessions import Sessions
    from broker.shared.feature import SharedFeature
    from broker.topics.feature import TopicFeature
    from broker.wills.feature import WillVerdicts
    from remoting.transport.contracts import Handler
    from runtime.metrics import Registry


class OperatingFeature(Feature):
    """The requests of operators that no other feature answers."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        sessions: Sessions,
        shared: SharedFeature,
        verdicts: WillVerdicts,
        appender: Appender,
        topics: TopicFeature,
        retained: Retained,
        groups: ConsumerGroups,
        lite: LiteFeature,
        registry: Registry,
    ) -> None:
        self._clients = MqttClientRequests(tools, sessions, shared=shared, verdicts=verdicts, appender=appender)
        self._retained = RetainedRequests(tools, retained, appender)
        self._letters = DeadLetterRequests(tools, topics=topics, groups=groups, appender=appender)
        self._tree = TopicTreeRequests(tools, topics.table, retained)
        self._groups = GroupListRequests(tools, groups, topics.queues, shared.groups)
        self._spark = SparkRequests(tools, registry)
        self._trace = TraceRequests(
            tools,
            topics=topics.table,
            visible=topics.visible,
            sessions=sessions,
            offsets=groups.offsets,
            spark=self._spark,
            lite=lite,
        )

        self._rules = RuleRequests(
            tools,
            self._clients.proxies,
            figures=registry.values,
            used=lambda: {
                "sessions_max": len(sessions),
                "topics_max": len(topics.table),
                "retained_messages_max": len(retained),
            },
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        parts = (
            self._clients, self._retained, self._letters, self._tree, self._groups, self._spark, self._trace,
            self._rules,
        )  # fmt: skip
        return {code: handler for part in parts for code, handler in part.handlers().items()}

    def configure(self) -> None:
        """Let proxies know."""
        self._clients.configure()

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Forget what nobody looks at or reports any more."""
        self._tree.maintain(now_ms)
        self._retained.maintain(now_ms)
        self._groups.maintain(now_ms)
        self._spark.maintain(now_ms)
        return {}

    def status(self) -> dict[str, int]:
        """How many proxies are connected, and how many Spark queries report."""
        return {"proxies": len(self._clients.proxies), "spark_queries": len(self._spark)}
