"""Which queues a message belongs to: (parent queue, exact-topic light queue, wildcard light queues...).

The queues of an MQTT topic are cached; a hit is one dict look-up. The cache is invalidated precisely: when a wildcard
filter is added or removed, exactly the cached topics that it matches are dropped (a topic tree over the cached names
finds them), and when a parent topic changes, the cached topics below it.

Invariant: a cached result always equals what an uncached computation would return now. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names, topics
from remoting.protocol.records.topics import TopicTree, validate_topic_name

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.subscriptions.filters import Filters
    from broker.topics.topics import Topics

INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
SERVER_TOPICS = b"$SYS/"
"""Topics that a proxy serves itself; messages of clients there are refused, except the state of a bridge."""
SERVER_QUEUES = names.light_queue_name(SERVER_TOPICS)
SLASH = names.escape(b"/")
SERVER_ROOT = SERVER_QUEUES.removesuffix(SLASH)
LIGHT_QUEUES_PER_MESSAGE_MAX = 1_024
"""Light queues a RocketMQ sender may name for one message; more are refused."""


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
        self.misses = 0
        self.invalidations = 0
        filters.on_change(self._filter_changed)
        topics.on_change(self._topic_changed)

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
        if not light_queues:
            return (parent,)
        named = [name for name in light_queues.split(b",") if name]
        if len(named) > LIGHT_QUEUES_PER_MESSAGE_MAX:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"more than {LIGHT_QUEUES_PER_MESSAGE_MAX} light queues")
        ids, open_queue = [parent], self._store.queues.open
        has_zero, has_server = b"\x00" in light_queues, SERVER_ROOT in light_queues
        for name in dict.fromkeys(named):
            if not name.startswith(names.LMQ_PREFIX) or (has_zero and b"\x00" in name):
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"light queue name {name!r} does not begin with %LMQ%")
            if has_server and (name + SLASH).startswith(SERVER_QUEUES):
                raise Refused(ResponseCode.NO_PERMISSION, "queues below $SYS are the server's own")
            ids.append(open_queue(name))
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
            config = self._topics.ensure(parent, self._queue_count)
        index = names.queue_index(topic, config.write_queue_count)
        ids = (
            self._topics.queue_ids(parent)[index],
            self._store.queues.open(names.light_queue_name(topic)),
            *self._filters.match(topic),
        )
        if len(self._cache) >= self._cached_topics_max:
            self._cache.clear()
            self._tree = TopicTree()
        self._cache[topic] = ids
        self._tree.set(topic, None)
        return ids

    def _filter_changed(self, topic_filter: bytes) -> None:
        self._drop([topic for topic, _ in self._tree.match(topic_filter)])

    def _topic_changed(self, name: str, created: bool) -> None:
        if created:
            return  # nothing below it can be cached yet
        wanted = name.encode()
        self._drop([topic for topic in self._cache if names.parent_topic(topic) == wanted])

    def _drop(self, stale: list[bytes]) -> None:
        for topic in stale:
            self._cache.pop(topic, None)
            self._tree.delete(topic)
        self.invalidations += len(stale)
