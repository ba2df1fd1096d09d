"""Topic table: name -> number of queues, permission, attributes; and the ids of the queues behind a topic.

A parent topic has N ordinary queues. Each is a store queue named `topic \\x00 index`; a zero byte cannot occur in a
topic name, so these names never collide with light queues. The configuration is one JSON document per topic (RocketMQ's
own field names) in the TOPIC state table.

Invariant: the TOPIC record is written after the records that create its queues, so a topic that is durable has all its
queues. Queues are only ever added; lowering a queue count hides the surplus from producers, never from readers.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from broker.topics.attributes import is_batch
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

PERMISSION_READ = 4
PERMISSION_WRITE = 2
PERMISSION_INHERIT = 1
DEFAULT_TOPIC = "TBW102"
"""Clients ask for the route of this topic when theirs does not exist yet (automatic creation)."""


class TopicSettings(msgspec.Struct, kw_only=True, frozen=True):
    """One topic as RocketMQ's tools know it."""

    name: str = msgspec.field(name="topicName")
    read_queue_count: int = msgspec.field(name="readQueueNums", default=4)
    write_queue_count: int = msgspec.field(name="writeQueueNums", default=4)
    permission: int = msgspec.field(name="perm", default=PERMISSION_READ | PERMISSION_WRITE)
    filter_type: str = msgspec.field(name="topicFilterType", default="SINGLE_TAG")
    system_flag: int = msgspec.field(name="topicSysFlag", default=0)
    order: bool = False
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def queue_count(self) -> int:
        """Queues that exist: the larger of what readers and writers see."""
        return max(self.read_queue_count, self.write_queue_count)

    @property
    def takes_batches(self) -> bool:
        """True for queue type BatchCQ: a producer may store a batch of messages as one record."""
        return is_batch(self.attributes)


_decode = msgspec.json.Decoder(TopicSettings).decode
_encode = msgspec.json.Encoder().encode


def queue_name(topic: str, index: int) -> bytes:
    """Store name of queue `index` of a parent topic."""
    return topic.encode() + b"\x00" + str(index).encode()


class Topics:
    """Door to the topic table; creates topics and their queues."""

    def __init__(self, store: LogStore, *, topics_max: int) -> None:
        self._store = store
        self._topics_max = topics_max
        self._configs: dict[str, TopicSettings] = {}
        self._positions: dict[str, int] = {}
        self._queue_ids: dict[str, tuple[int, ...]] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self._listeners: list[Callable[[str, bool], None]] = []
        self.version = 0
        for key, (value, position) in list(store.state.items(state_kinds.TOPIC)):
            self._apply(key.decode(), _decode(value), position)

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[TopicSettings]:
        return iter(list(self._configs.values()))

    def get(self, name: str) -> TopicSettings | None:
        """Configuration of a topic, or None when there is no such topic."""
        return self._configs.get(name)

    def require(self, name: str) -> TopicSettings:
        """Configuration of a topic; Refused(TOPIC_NOT_EXIST) when there is none."""
        config = self._configs.get(name)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic [{name}] not exist, apply first please!")
        return config

    def position(self, name: str) -> int:
        """Log position behind which the topic's creation is durable (what a reply that shows it waits for)."""
        return self._positions.get(name, 0)

    def queue_ids(self, name: str) -> tuple[int, ...]:
        """Ids of all queues of a topic by index; empty when the topic does not exist."""
        return self._queue_ids.get(name, ())

    def owner(self, queue_id: int) -> tuple[str, int] | None:
        """(topic, index) a queue id belongs to; None for light queues."""
        return self._owners.get(queue_id)

    def on_change(self, listener: Callable[[str, bool], None]) -> None:
        """Call `listener(name, created)` after every creation, change or removal."""
        self._listeners.append(listener)

    def ensure(self, name: str, queue_count: int, *, permission: int = 6) -> TopicSettings:
        """The topic's configuration, creating it with `queue_count` queues when it does not exist.

        Raises:
            Refused: the name is not valid, or `topics_max` is reached.
        """
        config = self._configs.get(name)
        if config is not None:
            return config
        return self.put(
            TopicSettings(
                name=name,
                read_queue_count=queue_count,
                write_queue_count=queue_count,
                permission=permission,
            )
        )

    def put(self, config: TopicSettings) -> TopicSettings:
        """Create or change a topic: its queues first, then its record."""
        if not names.valid_rocketmq_topic(config.name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"topic name [{config.name}] is not valid")
        if config.name not in self._configs and len(self._configs) >= self._topics_max:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topics_max {self._topics_max} topics exist already")
        self._store.queues.open_all([queue_name(config.name, index) for index in range(config.queue_count)])
        created = config.name not in self._configs
        position = self._store.append_state([StateChange(state_kinds.TOPIC, config.name.encode(), _encode(config))])
        self._apply(config.name, config, position)
        self._announce(config.name, created=created)
        return config

    def delete(self, name: str) -> int:
        """Remove a topic and its queues; returns the end position of the removal."""
        self.require(name)
        deletion = StateChange(state_kinds.TOPIC, name.encode(), None)
        position = self._store.queues.delete(self._queue_ids.get(name, ()), [deletion])
        for queue_id in self._queue_ids.pop(name, ()):
            self._owners.pop(queue_id, None)
        del self._configs[name]
        self._positions.pop(name, None)
        self._announce(name, created=False)
        return position

    def _apply(self, name: str, config: TopicSettings, position: int) -> None:
        ids = tuple(self._store.queues.open_all([queue_name(name, index) for index in range(config.queue_count)]))
        known = self._queue_ids.get(name, ())
        self._queue_ids[name] = ids + known[len(ids) :]
        for index, queue_id in enumerate(ids):
            self._owners[queue_id] = (name, index)
        self._configs[name] = config
        self._positions[name] = position

    def _announce(self, name: str, *, created: bool) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(name, created)
