"""Which clients subscribe to which lite topics, and which of these have messages for whom.

A lite topic `L` of a parent topic `P` of type LITE is the MQTT topic `P/L`: both names mean one light queue. Here a
lite topic is known by the name of that queue. A group is bound to one parent topic by its attributes:

    lite.bind.topic                   the parent topic; without it the group reads no lite topics
    lite.sub.model                    Shared (several clients of the group may have a topic) or Exclusive (the newest)
    lite.sub.wildcard                 present: its clients read all lite topics of the parent together
    lite.sub.client.quota             most lite topics of one client, -1 for any number
    lite.sub.reset.offset.exclusive   true: a client that takes a topic over begins at its beginning
    lite.sub.reset.offset.unsubscribe true: the group begins there again after a client has unsubscribed

A client has a feed: the set of its lite topics that may have messages for it, so a pop costs nothing for the others.
The clients of a wildcard group share one feed. An event is a hint: the pop that takes it checks the queue.
Invariants: a lite topic with a deliverable message is in the feed of each subscribed client, once; in an exclusive
group a lite topic has at most one client. Pure; time comes in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remoting.protocol.records import names
from remoting.protocol.records.topics import validate_topic_name

if TYPE_CHECKING:
    from remoting.transport.contracts import Peer

BIND_TOPIC, MODEL, WILDCARD = "lite.bind.topic", "lite.sub.model", "lite.sub.wildcard"
CLIENT_QUOTA = "lite.sub.client.quota"
RESET_EXCLUSIVE, RESET_UNSUBSCRIBE = "lite.sub.reset.offset.exclusive", "lite.sub.reset.offset.unsubscribe"
EXCLUSIVE = "Exclusive"
CLIENT_QUOTA_DEFAULT = 2_000
LITE_TOPIC_BYTES_MAX = 255
"""Longest lite topic that can be sent to or subscribed by its name."""
_SLASH = names.escape(b"/")
_WILDCARDS = (names.escape(b"+"), names.escape(b"#"))


@dataclass(frozen=True, slots=True)
class LiteRules:
    """How a group reads lite topics."""

    topic: str
    exclusive: bool
    wildcard: bool
    quota: int
    """-1: no limit."""
    reset_exclusive: bool
    reset_unsubscribe: bool


def group_rules(attributes: Mapping[str, str]) -> LiteRules | None:
    """The rules in a group's attributes; None for a group that is bound to no parent topic."""
    topic = attributes.get(BIND_TOPIC)
    if not topic:
        return None
    return LiteRules(
        topic=topic,
        exclusive=attributes.get(MODEL) == EXCLUSIVE,
        wildcard=WILDCARD in attributes,
        quota=int(attributes.get(CLIENT_QUOTA, CLIENT_QUOTA_DEFAULT)),
        reset_exclusive=attributes.get(RESET_EXCLUSIVE) == "true",
        reset_unsubscribe=attributes.get(RESET_UNSUBSCRIBE) == "true",
    )


def mqtt_topic(parent: str, lite_topic: str) -> bytes:
    """The MQTT topic that a lite topic is."""
    return f"{parent}/{lite_topic}".encode()


def problem_of(parent: str, lite_topic: str) -> str | None:
    """Why this is no lite topic, None when it is one."""
    if not lite_topic or len(lite_topic.encode()) > LITE_TOPIC_BYTES_MAX:
        return f"a lite topic has 1 to {LITE_TOPIC_BYTES_MAX} bytes"
    return validate_topic_name(mqtt_topic(parent, lite_topic))


def queue_prefix(parent: str) -> bytes:
    """What the queue names of all lite topics of a parent topic begin with."""
    return names.light_queue_name(parent.encode()) + _SLASH


def queue_name(parent: str, lite_topic: str) -> bytes:
    """The name of the light queue of a lite topic."""
    return names.light_queue_name(mqtt_topic(parent, lite_topic))


def parent_of(name: bytes) -> str | None:
    """The first level of the topic of a light queue; None for a queue of anything but a topic with two levels."""
    parent, slash, _lite = name.partition(_SLASH)
    if not slash or not parent.startswith(names.LMQ_PREFIX) or any(mark in name for mark in _WILDCARDS):
        return None
    return parent.removeprefix(names.LMQ_PREFIX).decode()


def lite_topic_of(name: bytes) -> str:
    """The lite topic of a light queue."""
    return names.light_queue_topic(name).partition(b"/")[2].decode("utf-8", "replace")


def shown_name(name: bytes) -> str:
    """The queue name that RocketMQ's tools know."""
    return f"%LMQ%${parent_of(name)}${lite_topic_of(name)}"


@dataclass(slots=True, eq=False)
class LiteFeed:
    """Lite topics that may have messages."""

    clients: int = 0
    """How many have it."""
    complete: bool = False
    """Of a wildcard group: whether all lite topics were examined for what was there before."""
    events: dict[bytes, None] = field(default_factory=dict)
    """In order of arrival."""

    def take(self) -> bytes | None:
        """Remove the oldest event."""
        for name in self.events:
            del self.events[name]
            return name
        return None


@dataclass(slots=True, eq=False)
class LiteClient:
    """One client of a group."""

    group: str
    client_id: str
    rules: LiteRules
    feed: LiteFeed
    seen_ms: int
    peer: Peer | None = None
    """The connection of its last subscription request."""
    version: int = 0
    """Of its last complete subscription."""
    popped_ms: int = -1
    consumed_ms: int = -1
    attempt: tuple[bytes, list[bytes]] = (b"", [])
    """Attempt id of its last pop, and the lite topics it was given."""
    names: set[bytes] = field(default_factory=set)
    alone: tuple[LiteClient, ...] = ()
    """The clients of a topic that only this one has: one object for all such topics."""

    def __post_init__(self) -> None:
        self.alone = (self,)


class LiteRegistry:
    """The clients of all groups that read lite topics."""

    def __init__(self) -> None:
        self.clients: dict[tuple[str, str], LiteClient] = {}
        """(group, client id) -> client; always the same dict."""
        self.subscriptions = 0
        """Lite topics of all clients together."""
        self._by_name: dict[bytes, tuple[LiteClient, ...]] = {}
        self._wild: dict[str, dict[str, LiteFeed]] = {}
        """Parent topic -> wildcard group -> the feed of its clients."""

    def client(self, group: str, client_id: str, rules: LiteRules, now_ms: int) -> LiteClient:
        """A client, which is alive now; one whose group has other rules than before begins anew."""
        found = self.clients.get((group, client_id))
        if found is not None and found.rules != rules:
            self.drop(found)
            found = None
        if found is None:
            found = LiteClient(group, client_id, rules, self._feed(group, rules), now_ms)
            found.feed.clients += 1
            self.clients[group, client_id] = found
        found.seen_ms = now_ms
        return found

    def add(self, client: LiteClient, wanted: Iterable[bytes]) -> list[bytes]:
        """Subscribe a client to lite topics; returns those it did not have."""
        added = [name for name in dict.fromkeys(wanted) if name not in client.names]
        for name in added:
            client.names.add(name)
            others = self._by_name.get(name)
            self._by_name[name] = client.alone if others is None else (*others, client)
        self.subscriptions += len(added)
        return added

    def remove(self, client: LiteClient, unwanted: Iterable[bytes]) -> list[bytes]:
        """Unsubscribe a client; returns the lite topics it had."""
        removed = [name for name in dict.fromkeys(unwanted) if name in client.names]
        for name in removed:
            client.names.discard(name)
            client.feed.events.pop(name, None)
            left = tuple(each for each in self._by_name[name] if each is not client)
            if not left:
                del self._by_name[name]
            else:
                self._by_name[name] = left[0].alone if len(left) == 1 else left
        self.subscriptions -= len(removed)
        return removed

    def owner(self, group: str, name: bytes) -> LiteClient | None:
        """A client of the group that has this lite topic."""
        return next((each for each in self._by_name.get(name, ()) if each.group == group), None)

    def drop(self, client: LiteClient) -> None:
        """Forget a client with everything it has."""
        self.remove(client, list(client.names))
        del self.clients[client.group, client.client_id]
        client.feed.clients -= 1
        if client.rules.wildcard and not client.feed.clients:
            groups = self._wild[client.rules.topic]
            del groups[client.group]
            if not groups:
                del self._wild[client.rules.topic]

    def expire(self, now_ms: int, silence_ms: int) -> int:
        """Forget the clients that have been silent for so long; returns how many."""
        silent = [client for client in self.clients.values() if now_ms - client.seen_ms > silence_ms]
        for client in silent:
            self.drop(client)
        return len(silent)

    def of_group(self, group: str) -> Iterator[LiteClient]:
        """The clients of a group."""
        return (client for (name, _id), client in self.clients.items() if name == group)

    def subscribers(self, name: bytes) -> Collection[LiteClient]:
        """The clients that named this lite topic."""
        return self._by_name.get(name, ())

    def notify(self, name: bytes, parent: str) -> list[LiteFeed]:
        """A lite topic has a new message: an event for each subscriber; returns the feeds that got one."""
        wild = self._wild.get(parent)
        feeds = [client.feed for client in self._by_name.get(name, ())]
        return _note(name, [*feeds, *wild.values()] if wild else feeds)

    def notify_group(self, group: str, rules: LiteRules, name: bytes) -> list[LiteFeed]:
        """A message of a lite topic can be delivered to this group now; returns the feeds that got an event."""
        if rules.wildcard:
            feed = self._wild.get(rules.topic, {}).get(group)
            return [] if feed is None else _note(name, [feed])
        return _note(name, [client.feed for client in self._by_name.get(name, ()) if client.group == group])

    def _feed(self, group: str, rules: LiteRules) -> LiteFeed:
        if not rules.wildcard:
            return LiteFeed()
        groups = self._wild.setdefault(rules.topic, {})
        found = groups.get(group)
        if found is None:
            found = groups[group] = LiteFeed()
        return found


def _note(name: bytes, feeds: list[LiteFeed]) -> list[LiteFeed]:
    for feed in feeds:
        feed.events[name] = None
    return feeds
