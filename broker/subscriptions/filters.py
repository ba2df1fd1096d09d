"""Wildcard filters with their queues, and how many MQTT subscriptions want each queue.

A filter gets its light queue when it is first subscribed; the FILTER record is in the log before the subscription is
answered, so "from here on" is exact. `Filters` counts the subscriptions that use a filter: those of durable sessions
count across restarts, those of clean sessions as long as their proxy is connected. When the last one was given up or
its session has ended, the queue is deleted with the next upkeep; when its proxy was lost, after `expiry_ms`, so that a
proxy that comes back reads on. A later subscriber gets a new queue with a new id.

A queue costs every message that matches it an entry, and there are at most `filters_max`: so it is charged to the user
whose subscription made it, who may have at most `per_user_max` of them. Clients without a user are one user.

`Subscribers` counts the subscriptions of all sessions by queue, which shows whether a message's topic has a subscriber:
those of clients that are away and of members of shared subscriptions too. A subscription with No Local does not count
for what its own client publishes. Readers that are no MQTT subscribers (RocketMQ's consumers, Spark) are not counted.

State record: key = filter, value = queue id (u32 little-endian). Invariants: a filter with a subscription has a queue,
and every message appended since then is in it; a queue is counted exactly while it has a subscription. Loop thread
only.

Which queues a message belongs to: (parent queue, exact-topic light queue, wildcard light queues...).

The queues of an MQTT topic are cached; a hit is one dict look-up. The cache is invalidated precisely: when a wildcard
filter is added or removed, exactly the cached topics that it matches are dropped (a topic tree over the cached names
finds them), and when a parent topic changes, the cached topics below it.

Invariant: a cached result always equals what an uncached computation would return now. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol, Self

from broker.store.placed import property_value
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names, topics
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, RecordView
from remoting.protocol.records.topics import FilterTrie, TopicTree, validate_topic_name

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics
    from remoting.protocol.frames.commands import Command
    from remoting.transport.contracts import Peer


_QUEUE_ID = struct.Struct("<I")

EXPIRED_PER_STEP_MAX = 1_000
"""Queues deleted in one turn of the loop."""


class Filters:
    """Wildcard filters, their queue ids and the number of subscriptions to each."""

    def __init__(self, store: LogStore, *, expiry_ms: int, filters_max: int, per_user_max: int, now_ms: int) -> None:
        self._store = store
        self._expiry_ms = expiry_ms
        self._filters_max = filters_max
        self._per_user_max = per_user_max
        self._queue_ids: dict[bytes, int] = {}
        self._holders: dict[bytes, int] = {}
        self._due_ms: dict[bytes, int] = {}
        """Filter without a subscription -> when its queue is deleted."""
        self._users: dict[bytes, str | None] = {}
        """Filter -> who is charged; not known yet for one that nobody has subscribed to since the start."""
        self._charged: dict[str | None, int] = {}
        self._trie: FilterTrie[int] = FilterTrie()
        self._listeners: list[Callable[[bytes], None]] = []
        self.expired = 0
        for key, (value, _position) in list(store.state.items(state_kinds.FILTER)):
            topic_filter = bytes(key)
            queue_id = _QUEUE_ID.unpack(value)[0]
            self._queue_ids[topic_filter] = queue_id
            self._trie.add(topic_filter, queue_id)
            self._due_ms[topic_filter] = now_ms + expiry_ms

    def __len__(self) -> int:
        return len(self._queue_ids)

    def on_change(self, listener: Callable[[bytes], None]) -> None:
        """Call `listener(filter)` after a filter was added or removed."""
        self._listeners.append(listener)

    def match(self, topic: bytes) -> list[int]:
        """Ids of the wildcard queues a message on `topic` goes to, each once, in rising order."""
        return sorted(set(self._trie.match(topic)))

    def find(self, topic_filter: bytes) -> int | None:
        """Queue id of a filter that has a queue."""
        return self._queue_ids.get(topic_filter)

    def holders(self, topic_filter: bytes) -> int:
        """Number of subscriptions to the filter now."""
        return self._holders.get(topic_filter, 0)

    def acquire(self, topic_filter: bytes, user: str | None = None) -> int:
        """One more subscription on the filter; returns its queue id, creating queue and record when it is new.

        Raises:
            Refused: `filters_max` wildcard queues exist already, or `user` has as many as one may have.
        """
        queue_id = self._queue_ids.get(topic_filter)
        if queue_id is None:
            queue_id = self._create(topic_filter, user)
        if topic_filter not in self._users:
            self._users[topic_filter] = user
            self._charged[user] = self._charged.get(user, 0) + 1
        self._holders[topic_filter] = self._holders.get(topic_filter, 0) + 1
        self._due_ms.pop(topic_filter, None)
        return queue_id

    def release(self, topic_filter: bytes, now_ms: int, *, lost: bool) -> None:
        """One subscription less; after the last one the queue is deleted, later if it was `lost` with its proxy."""
        left = self._holders[topic_filter] - 1
        assert left >= 0, topic_filter
        if left:
            self._holders[topic_filter] = left
            return
        del self._holders[topic_filter]
        self._due_ms[topic_filter] = now_ms + self._expiry_ms if lost else now_ms

    def expire(self, now_ms: int) -> int:
        """Delete queues whose time has come, a bounded number at once; returns how many."""
        due = list(islice((name for name, due_ms in self._due_ms.items() if due_ms <= now_ms), EXPIRED_PER_STEP_MAX))
        if not due:
            return 0
        self._store.queues.delete(
            [self._queue_ids[name] for name in due], [StateChange(state_kinds.FILTER, name, None) for name in due]
        )
        for topic_filter in due:
            queue_id = self._queue_ids.pop(topic_filter)
            del self._due_ms[topic_filter]
            self._trie.remove(topic_filter, queue_id)
            self._discharge(topic_filter)
            self._announce(topic_filter)
        self.expired += len(due)
        return len(due)

    def _discharge(self, topic_filter: bytes) -> None:
        if topic_filter not in self._users:
            return
        user = self._users.pop(topic_filter)
        left = self._charged[user] - 1
        if left:
            self._charged[user] = left
        else:
            del self._charged[user]

    def _create(self, topic_filter: bytes, user: str | None) -> int:
        if len(self._queue_ids) >= self._filters_max:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"filters_max {self._filters_max} wildcard filters exist already")
        if self._charged.get(user, 0) >= self._per_user_max:
            remark = (
                f"filters_per_user_max: {user or 'clients without a user'} made {self._per_user_max} filters already"
            )
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        queue_id = self._store.queues.open(names.light_queue_name(topic_filter))
        self._store.append_state([StateChange(state_kinds.FILTER, topic_filter, _QUEUE_ID.pack(queue_id))])
        self._queue_ids[topic_filter] = queue_id
        self._trie.add(topic_filter, queue_id)
        self._announce(topic_filter)
        return queue_id

    def _announce(self, topic_filter: bytes) -> None:
        for listener in self._listeners:
            listener(topic_filter)


NO_LOCAL = 1
"""Bit of a subscription's options: no messages published by its own client."""


class Subscribers:
    """Subscriptions by queue."""

    def __init__(self) -> None:
        self.on_last: Callable[[int], None] = lambda _queue_id: None
        """Called with a queue that has no subscription any more."""
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
            self.on_last(queue_id)
        self._forget(client_id, queue_id, options)

    def any(self, queue_id: int) -> bool:
        """Whether a queue has a subscription."""
        return queue_id in self._counts

    def want(self, image: RecordView, queues: tuple[int, ...]) -> bool:
        """Whether there is a subscriber to the topic of a placed message.

        Only for MQTT messages that go out at once can the answer be False. The subscribers of a delayed message are
        determined when it is due; until then it is staged, without the flag.
        """
        if not image.flags & FLAG_MQTT:
            return True
        found = [queue_id for queue_id in queues if queue_id in self._counts]
        if not found or not self._not_own:
            return bool(found)
        return any(self._wants(queue_id, image) for queue_id in found)

    def _wants(self, queue_id: int, image: RecordView) -> bool:
        """Whether a queue has a subscriber other than a sender with No Local, which a client has there at most once."""
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


INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
SERVER_TOPICS = b"$SYS/"
"""Topics that a proxy serves itself; messages of clients there are refused, except the state of a bridge."""
SERVER_QUEUES = names.light_queue_name(SERVER_TOPICS)
SLASH = names.escape(b"/")
SERVER_ROOT = SERVER_QUEUES.removesuffix(SLASH)
LIGHT_QUEUES_PER_MESSAGE_MAX = 1_024
"""Light queues a RocketMQ sender may name for one message; more are refused."""
LIGHT_LISTS_MAX, LIGHT_LIST_BYTES_MAX = 8_192, 1_024
"""Lists of light queues that are cached, and the longest of them; at most 20 MB."""


class TopicOpening(Protocol):
    """Opens the light queues of topics that are published to."""

    def open(self, name: bytes, parent: bytes, topic: bytes, /) -> int:
        """Return the light queue `name` below `parent` for a message on an MQTT topic, or on none.

        Raises:
            Refused: there are too many of them.
        """
        ...

    def check(self, topic: bytes, /) -> None:
        """Return when the sender of a message on a topic may make one more. Refused: there are too many of its own."""
        ...

    def maker(self, topic: bytes, /) -> str:
        """Return the user for whom a parent topic counts that a message on a topic makes; empty: nobody."""
        ...


class Unlimited:
    """Opens whatever queue is wanted."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def open(self, name: bytes, _parent: bytes, _topic: bytes) -> int:
        """Return the light queue `name`."""
        return self._store.queues.open(name)

    def check(self, topic: bytes) -> None:
        """Return: there is no limit."""

    def maker(self, _topic: bytes) -> str:
        """Return no user: a topic counts for nobody."""
        return ""

    def subscribe(self, wanted: Iterable[tuple[bytes, str]]) -> None:
        """Make the missing queues of these, as (name, user)."""
        self._store.queues.open_all([name for name, _user in wanted])

    def subscribed(self, name: bytes, _user: str) -> int:
        """Return the light queue `name`."""
        return self._store.queues.open(name)


class Placing:
    """What is being placed at the moment, for whom a new topic counts."""

    def __init__(self) -> None:
        self.images = b""
        """The images back to back."""
        self.request: tuple[Peer, Command] | None = None
        """The request that asks for them to be accepted; None for what was accepted before and is due now."""

    def by(self, peer: Peer, command: Command) -> Placing:
        """As a context: what is placed in it is to be accepted, and a new topic counts for whoever asks."""
        self.request = peer, command
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.request = None


DROPPED_MAX = 1_000
"""Cached topics taken out one by one when a filter or a topic changes: a few milliseconds. Of more all are."""


class Dispatcher:
    """Cached topic -> queue ids; `invalidations` and `misses` are counted for the metrics page."""

    def __init__(
        self,
        store: LogStore,
        topics: Topics,
        filters: Filters,
        *,
        cached_topics_max: int,
        queue_count: int,
        auto_create: bool = True,
    ) -> None:
        self._store = store
        self._topics = topics
        self._filters = filters
        self._cached_topics_max = cached_topics_max
        self._queue_count = queue_count
        self._auto_create = auto_create
        self._cache: dict[bytes, tuple[int, ...]] = {}
        self.cached: Mapping[bytes, tuple[int, ...]] = self._cache
        """The cached queues, for hot loops; other callers use `mqtt`."""
        self._tree: TopicTree[None] = TopicTree()
        self.light: dict[bytes, tuple[int, ...]] = {}
        """Value of INNER_MULTI_DISPATCH -> ids of its light queues, for hot loops; other callers use `lit`."""
        self.opening: TopicOpening = Unlimited(store)
        self.placing = Placing()
        self.misses = 0
        self.invalidations = 0
        filters.on_change(self._filter_changed)
        topics.on_change(self._topic_changed)
        store.state.subscribe(state_kinds.QUEUE, self._queue_changed)

    def configure(self, queue_count: int, *, auto_create: bool) -> None:
        """Create parent topics with so many queues by use from now on, or none."""
        self._queue_count, self._auto_create = queue_count, auto_create

    def mqtt(self, topic: bytes) -> tuple[int, ...]:
        """Queue ids for a message on an MQTT topic; creates the parent topic and the exact light queue on first use.

        Raises:
            Refused: the topic is not writable, may not be created, or a limit is reached.
        """
        found = self._cache.get(topic)
        return found if found is not None else self._miss(topic)

    def queue(self, topic: str, index: int, light_queues: bytes = b"") -> tuple[int, ...]:
        """Queue ids for a message a RocketMQ client sends to queue `index`, plus the light queues it names.

        `light_queues` is the value of the property INNER_MULTI_DISPATCH: names with the prefix %LMQ%, comma separated.
        """
        parent = self._topics.queue_ids(topic)[index]
        return (parent, *self.lit(light_queues)) if light_queues else (parent,)

    def lit(self, light_queues: bytes) -> tuple[int, ...]:
        """Ids of the light queues that a value of INNER_MULTI_DISPATCH names, created when they do not exist.

        Raises:
            Refused: there are too many, or one is none that a sender may name.
        """
        found = self.light.get(light_queues)
        if found is not None:
            return found
        named = [name for name in light_queues.split(b",") if name]
        if len(named) > LIGHT_QUEUES_PER_MESSAGE_MAX:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"more than {LIGHT_QUEUES_PER_MESSAGE_MAX} light queues")
        ids, open_queue = [], self.opening.open
        has_zero, has_server = b"\x00" in light_queues, SERVER_ROOT in light_queues
        for name in dict.fromkeys(named):
            if not name.startswith(names.LMQ_PREFIX) or (has_zero and b"\x00" in name):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"light queue name {name!r} does not begin with %LMQ%")
            if has_server and (name + SLASH).startswith(SERVER_QUEUES):
                raise Refused(ResponseCode.NO_PERMISSION, "queues below $SYS are the server's own")
            ids.append(open_queue(name, b"", b""))
        if len(light_queues) <= LIGHT_LIST_BYTES_MAX:
            if len(self.light) >= LIGHT_LISTS_MAX:
                self.light.clear()
            self.light[light_queues] = tuple(ids)
        return tuple(ids)

    def _miss(self, topic: bytes) -> tuple[int, ...]:
        self.misses += 1
        wrong = validate_topic_name(topic)
        if wrong is not None:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, wrong)
        if (topic + b"/").startswith(SERVER_TOPICS) and topics.owner_of(topic) is None:
            raise Refused(ResponseCode.NO_PERMISSION, "topics below $SYS are the server's own")
        parent = names.parent_topic(topic).decode()
        config = self._topics.get(parent)
        if config is None:
            if not self._auto_create:
                raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{parent}] not exist and may not be created by use")
            self.opening.check(topic)
            config = self._topics.ensure(parent, self._queue_count, maker=self.opening.maker(topic))
        index = names.queue_index(topic, config.write_queue_count)
        ids = (
            self._topics.queue_ids(parent)[index],
            self.opening.open(names.light_queue_name(topic), parent.encode(), topic),
            *self._filters.match(topic),
        )
        if len(self._cache) >= self._cached_topics_max:
            self._forget_all()
        self._cache[topic] = ids
        self._tree.set(topic, None)
        return ids

    def _filter_changed(self, topic_filter: bytes) -> None:
        stale = list(islice((topic for topic, _ in self._tree.match(topic_filter)), DROPPED_MAX + 1))
        if len(stale) > DROPPED_MAX:
            self._drop_all()
        else:
            self._drop(stale)

    def _topic_changed(self, name: str, created: bool) -> None:
        if created:
            return  # nothing below it can be cached yet
        if len(self._cache) > DROPPED_MAX:
            self._drop_all()
            return
        wanted = name.encode()
        self._drop([topic for topic in self._cache if names.parent_topic(topic) == wanted])

    def _queue_changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if value is None and name.startswith(names.LMQ_PREFIX):  # ids of deleted queues are never used again
            self.light.clear()
            with suppress(RemoteViolation):  # a name that only RocketMQ's clients use
                self._drop([names.light_queue_topic(name)])

    def _forget_all(self) -> None:
        self._cache.clear()
        self._tree = TopicTree()

    def _drop_all(self) -> None:
        """Each topic is looked up again when it is published to: taken out one by one they would hold everybody up."""
        self.invalidations += len(self._cache)
        self._forget_all()

    def _drop(self, stale: list[bytes]) -> None:
        for topic in stale:
            if self._cache.pop(topic, None) is not None:
                self._tree.delete(topic)
                self.invalidations += 1
