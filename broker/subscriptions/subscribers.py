"""How many MQTT subscriptions want each queue: what says whether anybody has subscribed to a message's topic.

All subscriptions of all sessions count, whichever proxy they came through: of clients that are away, and of members of
shared subscriptions too. A subscription with No Local does not count for what its own client publishes. Readers that
are no MQTT subscribers (RocketMQ's consumers, Spark) are not known here.
Invariant: a queue has a number exactly while a subscription wants it. Loop thread only.
"""

from __future__ import annotations

from broker.store.placed import property_value
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, RecordView

NO_LOCAL = 1
"""Bit of a subscription's options: not what its own client publishes."""


class Subscribers:
    """Subscriptions by queue."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._not_own: dict[int, set[str]] = {}
        """Queue -> clients whose subscription has No Local; few queues have one."""

    def add(self, client_id: str, queue_id: int, options: int) -> None:
        """One more subscription."""
        self._counts[queue_id] = self._counts.get(queue_id, 0) + 1
        self._note(client_id, queue_id, options)

    def change(self, client_id: str, queue_id: int, before: int, options: int) -> None:
        """A subscription has other options."""
        if (before ^ options) & NO_LOCAL:
            self._forget(client_id, queue_id, before)
            self._note(client_id, queue_id, options)

    def remove(self, client_id: str, queue_id: int, options: int) -> None:
        """One subscription less."""
        left = self._counts[queue_id] - 1
        assert left >= 0, queue_id
        if left:
            self._counts[queue_id] = left
        else:
            del self._counts[queue_id]
        self._forget(client_id, queue_id, options)

    def want(self, image: RecordView, queues: tuple[int, ...]) -> bool:
        """Whether somebody has subscribed to the topic of a placed message.

        Only of MQTT messages that go out at once is it known that nobody has. Who wants a delayed one is seen when it
        is due; until then it is staged, without the flag.
        """
        if not image.flags & FLAG_MQTT:
            return True
        found = [queue_id for queue_id in queues if queue_id in self._counts]
        if not found or not self._not_own:
            return bool(found)
        return any(self._wants(queue_id, image) for queue_id in found)

    def _wants(self, queue_id: int, image: RecordView) -> bool:
        """A client has a queue once at most with No Local: shared subscriptions cannot have it."""
        not_own = self._not_own.get(queue_id)
        if not_own is None or self._counts[queue_id] > 1:
            return True
        return property_value(image, CLIENT_ID_KEY).decode("utf-8", "replace") not in not_own

    def _note(self, client_id: str, queue_id: int, options: int) -> None:
        if options & NO_LOCAL:
            self._not_own.setdefault(queue_id, set()).add(client_id)

    def _forget(self, client_id: str, queue_id: int, options: int) -> None:
        if options & NO_LOCAL:
            clients = self._not_own[queue_id]
            clients.discard(client_id)
            if not clients:
                del self._not_own[queue_id]
