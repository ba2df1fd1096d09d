"""Figures of the broker that are counted when the metrics page is rendered: lag of groups and of shared subscriptions,
sessions, retained messages.

A page is rendered every few seconds and on the loop, so each of them is bounded: the lag covers at most `QUEUES_MAX`
queues, groups in order of their names, and the number of groups beyond is a metric of its own. The sessions' backlog is
summed up step by step, `SESSIONS_A_ROUND` sessions with every round of the broker's upkeep; the page shows the last
whole sum. Invariant: reads only; a queue that was deleted counts as nothing. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.requests import Feature
from remoting.protocol.errors import LocalMisuse, Refused

if TYPE_CHECKING:
    from broker.groups.groups import GroupOffsets
    from broker.retained.feature import Retained
    from broker.sessions.client_session import ClientSession
    from broker.sessions.sessions import Sessions
    from broker.shared.groups import SharedGroups
    from broker.store.log_store import LogStore
    from broker.topics.topics import ClientQueues
    from runtime.metrics import Registry

QUEUES_MAX = 2_000
"""Most queues of groups in one page: about a microsecond each."""
SESSIONS_A_ROUND = 1_000


class GroupLag:
    """How far consumer groups are behind, by group and topic."""

    def __init__(self, store: LogStore, offsets: GroupOffsets, queues: ClientQueues) -> None:
        self._store = store
        self._offsets = offsets
        self._queues = queues
        self.groups_left_out = 0
        """Groups for which the last look had no room."""

    def rows(self) -> Iterable[tuple[tuple[str, str], float]]:
        """((group, topic), messages that can be read and are not yet consumed)."""
        found: dict[tuple[str, str], float] = {}
        left = QUEUES_MAX
        names = self._offsets.groups()
        for number, group in enumerate(names):
            offsets = self._offsets.of_group(group)
            if len(offsets) > left:
                self.groups_left_out = len(names) - number
                return found.items()
            left -= len(offsets)
            for (topic, index), offset in offsets.items():
                behind = self._behind(topic, index, offset)
                found[group, topic] = found.get((group, topic), 0) + behind
        self.groups_left_out = 0
        return found.items()

    def _behind(self, topic: str, index: int, offset: int) -> int:
        try:
            queue = self._queues.find(topic, index)
            low, high = (0, 0) if queue is None else self._store.reading.bounds(queue)
        except (Refused, LocalMisuse):  # the topic, or this queue of it, was removed
            return 0
        return max(0, high - max(offset, low))


class SharedLag:
    """How far the groups of shared subscriptions are behind, by whole filter."""

    def __init__(self, groups: SharedGroups) -> None:
        self._groups = groups
        self.groups_left_out = 0
        """Groups for which the last look had no room."""

    def rows(self) -> Iterable[tuple[tuple[str], float]]:
        """((whole filter,), messages that can be read and no member has acknowledged)."""
        found = sorted(self._groups.items())
        self.groups_left_out = max(0, len(found) - QUEUES_MAX)
        return [((name,), float(self._groups.behind(group).messages)) for name, group in found[:QUEUES_MAX]]


class Backlog(Feature):
    """What sessions have not been given, summed up a part at a time."""

    def __init__(self, store: LogStore, sessions: Sessions) -> None:
        self._store = store
        self._sessions = sessions
        self._names: Iterator[str] = iter(())
        self._sum = 0
        self.messages = 0
        """As of the last whole sum."""

    def maintain(self, now_ms: int) -> dict[str, int]:  # noqa: ARG002 - as every feature's
        """Look at the next sessions; drops nothing."""
        self._step()
        return {}

    def _step(self) -> None:
        for _ in range(SESSIONS_A_ROUND):
            name = next(self._names, None)
            if name is None:
                self.messages, self._sum = self._sum, 0
                self._names = iter([session.client_id for session in self._sessions])
                return
            session = self._sessions.get(name)
            if session is not None:
                self._sum += self._of(session)

    def _of(self, session: ClientSession) -> int:
        behind = 0
        for item in session.subscriptions.values():
            try:
                oldest, end = self._store.reading.bounds(item.queue_id)
            except LocalMisuse:  # deleted; the proxy ends the session's connection when it reads there
                continue
            behind += max(0, end - max(session.offsets.get(item.queue_id, end), oldest))
        return behind


def declare_figures(
    registry: Registry, *, lag: GroupLag, shared: SharedLag, backlog: Backlog, sessions: Sessions, retained: Retained
) -> None:
    """Declare what is read when the page is rendered."""
    gauge = registry.gauge
    registry.rows(
        "rocketmq_consumer_lag_messages",
        "Messages that a group can read and has not consumed, as it committed its offsets",
        ("consumer_group", "topic"),
        lag.rows,
    )
    gauge(
        "rocketmq_consumer_groups_left_out",
        "Groups whose lag is not shown because there are too many queues",
        function=lambda: lag.groups_left_out,
    )
    registry.rows(
        "rocketmq_mqtt_shared_lag_messages",
        "Messages that a shared subscription can read and none of its members has acknowledged",
        ("subscription",),
        shared.rows,
    )
    gauge(
        "rocketmq_mqtt_shared_groups_left_out",
        "Shared subscriptions whose lag is not shown because there are too many",
        function=lambda: shared.groups_left_out,
    )
    gauge("rocketmq_mqtt_sessions_kept", "MQTT sessions, of absent clients too", function=lambda: len(sessions))
    gauge(
        "rocketmq_mqtt_sessions_offline",
        "MQTT sessions whose clients are not connected",
        function=lambda: len(sessions) - sessions.connected,
    )
    gauge(
        "rocketmq_mqtt_session_backlog_messages",
        "Messages that subscriptions of all MQTT sessions have not been given",
        function=lambda: backlog.messages,
    )
    gauge("rocketmq_mqtt_retained_messages", "Retained messages", function=lambda: len(retained))
