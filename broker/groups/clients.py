"""RocketMQ clients that are connected now: producers and members of consumer groups, by heartbeat.

Rebalancing is done by the clients: each asks for the sorted list of its group's client ids, and is told when the list
changes. So what counts here is that the list is exact and that every change is announced once.

Invariant: a client is in the table from its heartbeat until it unregisters, its connection closes, or `expiry_ms` pass
without a heartbeat. In memory only: after a restart the clients' next heartbeats rebuild it. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


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
    """Who is connected, by client id and by group."""

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
        """Whether a member reads all queues for itself; by name, or by number from the C++ client."""
        return any(
            client.consumer_groups[group].get("messageModel") in ("BROADCASTING", 0)
            for client in self.clients_of(group)
        )

    def peer_of(self, client_id: str) -> Any | None:
        """The connection on which a client sends its heartbeats; None for one that is not here."""
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
        """A client says it leaves a group."""
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
        """Remove the clients that fell silent; returns how many."""
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
