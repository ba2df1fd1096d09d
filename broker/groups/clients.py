"""Consumer groups in memory: the RocketMQ clients that are connected now, and how many messages each group was given.

Rebalancing is done by the clients: each asks for the sorted list of its group's client ids and is notified when the
list changes. So `Clients` has to be exact and announce every change once; after a restart the clients' next heartbeats
rebuild it. `GroupTraffic` counts what groups pulled in the last minute, hour and day since the start of this broker, in
a few buckets per span, so that one answer costs the same however many there were; what is put into a topic is read from
the log itself (its offsets by time). `QueueLocks` are those of orderly consumers: one client of a group per queue,
renewed every 20 s, free after 60 s without renewal; after a restart every lock is free and the clients lock again.

Invariants: a client is in the table from its heartbeat until it unregisters, its connection closes, or `expiry_ms` pass
without a heartbeat; a group and topic without an answer for a day are dropped. Time comes in. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LOCK_EXPIRY_MS = 60_000

QueueKey = tuple[str, int]
"""(topic, queue index)."""


@dataclass(slots=True)
class GroupClient:
    """One client process as its heartbeats describe it."""

    client_id: str
    peer: Any
    language: str
    version: int
    seen_ms: int
    producer_groups: set[str] = field(default_factory=set)
    consumer_groups: dict[str, dict[str, Any]] = field(default_factory=dict)


class Clients:
    """The connected clients, by client id and by group."""

    def __init__(self, *, expiry_ms: int, on_group_changed: Callable[[str], None]) -> None:
        self._expiry_ms = expiry_ms
        self._on_group_changed = on_group_changed
        self._clients: dict[str, GroupClient] = {}
        self._members: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def members(self, group: str) -> list[str]:
        """Client ids of a consumer group in stable, sorted order."""
        return sorted(self._members.get(group, ()))

    def clients_of(self, group: str) -> list[GroupClient]:
        """The clients of a consumer group, by client id."""
        return [self._clients[client_id] for client_id in self.members(group)]

    def broadcasts(self, group: str) -> bool:
        """Whether a member reads all queues for itself; the C++ client sends the model as a number."""
        return any(
            client.consumer_groups[group].get("messageModel") in ("BROADCASTING", 0)
            for client in self.clients_of(group)
        )

    def peer_of(self, client_id: str) -> Any | None:
        """The connection on which a client sends its heartbeats; None for one that is not connected."""
        client = self._clients.get(client_id)
        return None if client is None else client.peer

    def producers_of(self, group: str) -> list[GroupClient]:
        """The clients that produce for a group."""
        return [client for client in self._clients.values() if group in client.producer_groups]

    def subscription(self, group: str, topic: str) -> dict[str, Any] | None:
        """The subscription of a group to a topic as a member's heartbeat gave it."""
        for client in self.clients_of(group):
            for subscription in client.consumer_groups[group].get("subscriptionDataSet") or ():
                if subscription.get("topic") == topic:
                    return dict(subscription)
        return None

    def heartbeat(
        self,
        client: GroupClient,
        producers: Iterable[str],
        consumers: dict[str, dict[str, Any]],
    ) -> bool:
        """Note a heartbeat; True when a group gained a member. Groups it no longer names are left to unregister."""
        known = self._clients.get(client.client_id)
        if known is None:
            self._clients[client.client_id] = known = client
        known.peer, known.seen_ms = client.peer, client.seen_ms
        known.language, known.version = client.language, client.version
        known.producer_groups.update(producers)
        joined = [group for group in consumers if client.client_id not in self._members.get(group, ())]
        known.consumer_groups.update(consumers)
        for group in joined:
            self._members.setdefault(group, set()).add(client.client_id)
            self._on_group_changed(group)
        return bool(joined)

    def unregister(self, client_id: str, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves a group."""
        client = self._clients.get(client_id)
        if client is None:
            return
        if producer_group:
            client.producer_groups.discard(producer_group)
        if consumer_group and client.consumer_groups.pop(consumer_group, None) is not None:
            self._leave(client_id, consumer_group)
        if not client.producer_groups and not client.consumer_groups:
            del self._clients[client_id]

    def peer_closed(self, peer: object) -> None:
        """A connection closed: its clients leave all groups."""
        for client in [client for client in self._clients.values() if client.peer is peer]:
            self._remove(client)

    def expire(self, now_ms: int) -> int:
        """Remove the clients without a heartbeat for `expiry_ms`; returns how many."""
        silent = [client for client in self._clients.values() if now_ms - client.seen_ms > self._expiry_ms]
        for client in silent:
            self._remove(client)
        return len(silent)

    def _remove(self, client: GroupClient) -> None:
        del self._clients[client.client_id]
        for group in client.consumer_groups:
            self._leave(client.client_id, group)

    def _leave(self, client_id: str, group: str) -> None:
        members = self._members.get(group, set())
        members.discard(client_id)
        if not members:
            self._members.pop(group, None)
        self._on_group_changed(group)


MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SPANS_MS = (MINUTE_MS, HOUR_MS, DAY_MS)
BUCKETS = 12
"""Buckets of a span: a count leaves it up to one of them late."""
MILLISECONDS = 1_000


@dataclass(slots=True)
class TrafficCount:
    """Messages and bytes given, in how many answers."""

    messages: int = 0
    size_bytes: int = 0
    answers: int = 0


class _Window:
    """What was given within one span."""

    __slots__ = ("_bucket_ms", "_buckets", "_span_ms")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._bucket_ms = span_ms // BUCKETS
        self._buckets: deque[tuple[int, TrafficCount]] = deque()

    def add(self, now_ms: int, messages: int, size_bytes: int) -> None:
        start_ms = now_ms - now_ms % self._bucket_ms
        if not self._buckets or self._buckets[-1][0] != start_ms:
            self._drop(now_ms)
            self._buckets.append((start_ms, TrafficCount()))
        counted = self._buckets[-1][1]
        counted.messages += messages
        counted.size_bytes += size_bytes
        counted.answers += 1

    def total(self, now_ms: int) -> TrafficCount:
        self._drop(now_ms)
        found = TrafficCount()
        for _start_ms, counted in self._buckets:
            found.messages += counted.messages
            found.size_bytes += counted.size_bytes
            found.answers += counted.answers
        return found

    def _drop(self, now_ms: int) -> None:
        """Drop buckets that have left the span, and those a clock set back has put into the future."""
        while self._buckets and not 0 <= now_ms - self._buckets[0][0] < self._span_ms:
            self._buckets.popleft()


class GroupTraffic:
    """Messages given to groups, by group and topic."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], tuple[_Window, ...]] = {}
        self._forgotten_ms = 0

    def gave(self, group: str, topic: str, now_ms: int, messages: int, size_bytes: int) -> None:
        """A group was given messages of a topic."""
        windows = self._windows.get((group, topic))
        if windows is None:
            windows = self._windows[group, topic] = tuple(map(_Window, SPANS_MS))
        for window in windows:
            window.add(now_ms, messages, size_bytes)

    def totals(self, group: str, topic: str, now_ms: int) -> tuple[TrafficCount, ...] | None:
        """What a group was given of a topic, for each of `SPANS_MS`; None when it was given nothing for a day."""
        windows = self._windows.get((group, topic))
        return None if windows is None else tuple(window.total(now_ms) for window in windows)

    def per_second(self, group: str, topic: str, now_ms: int) -> float:
        """Messages per second over the last minute."""
        windows = self._windows.get((group, topic))
        return windows[0].total(now_ms).messages * MILLISECONDS / MINUTE_MS if windows is not None else 0.0

    def expire(self, now_ms: int) -> None:
        """Drop groups that were given nothing for a day; checks once a minute."""
        if 0 <= now_ms - self._forgotten_ms < MINUTE_MS:
            return
        self._forgotten_ms = now_ms
        for key in list(self._idle(now_ms)):
            del self._windows[key]

    def _idle(self, now_ms: int) -> Iterator[tuple[str, str]]:
        return (key for key, windows in self._windows.items() if not windows[-1].total(now_ms).answers)


class QueueLocks:
    """Locks of queues: (group, queue) -> client."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, QueueKey], tuple[str, int]] = {}

    def lock(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> bool:
        """Take or renew a queue for a client; False when another client of the group has it."""
        owner = self._owners.get((group, queue))
        if owner is not None and owner[0] != client_id and now_ms - owner[1] < LOCK_EXPIRY_MS:
            return False
        self._owners[group, queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, queue: QueueKey, client_id: str) -> None:
        """Release a queue; does nothing when the client does not have it."""
        owner = self._owners.get((group, queue))
        if owner is not None and owner[0] == client_id:
            del self._owners[group, queue]

    def expire(self, now_ms: int) -> None:
        """Drop locks that were not renewed."""
        stale = [key for key, (_client, since) in self._owners.items() if now_ms - since >= LOCK_EXPIRY_MS]
        for key in stale:
            del self._owners[key]
