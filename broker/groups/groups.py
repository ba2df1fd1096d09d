"""Consumer groups in the log: their configuration, the retry topic each has, and their offsets.

```
GROUP         key = group    value = JSON document with RocketMQ's field names
GROUP_OFFSET  key = group, 0x00, topic, 0x00, queue index as decimal text    value = offset i64 LE
```
A group exists from its first heartbeat or by an administrator. Its retry topic `%RETRY%group` (one queue) is created
with it, because clients ask for that route at once.

Offsets may move back (an administrator resets a group), so the last write wins. Clients commit often, queue by queue;
what arrives in one turn of the loop is one record (`OffsetGather`), the last commit of a queue wins. A pull commits
without an answer about it, with every request: such commits are gathered for `COMMITS_WAIT_S`, so that a kill makes a
consumer read what it pulled in that time again. Invariant: a query sees all commits before it (they are written first).
Loop thread only.

Consumer groups in memory: the RocketMQ clients that are connected now.

Rebalancing is done by the clients: each asks for the sorted list of its group's client ids and is notified when the
list changes. So `Clients` has to be exact and announce every change once; after a restart the clients' next heartbeats
rebuild it.

A client id belongs to the identity whose heartbeat brought it: what is sent to the client (answers to its requests,
questions about its transactions) goes to nobody else while it is here (`ClientRequests`).

Invariant: a client is in the table from its heartbeat until it unregisters, its connection closes, or `expiry_ms` pass
without a heartbeat. Time comes in. Loop thread only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.request_modes import RequestModes
from broker.store.errors import StoreError, StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.server.authorizer import RequestReceiver

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics


QueueKey = tuple[str, int]
"""(topic, queue index)."""


NOBODY = RequestReceiver("", "", False)


@dataclass(slots=True)
class GroupClient:
    """One client process as its heartbeats describe it."""

    client_id: str
    peer: Any
    language: str
    version: int
    seen_ms: int
    receiver: RequestReceiver = NOBODY
    """Whose rights count for what it is sent; that of its last heartbeat."""
    grpc_release: str | None = None
    """Its version as it names it, when it comes through the gRPC proxy; `version` is then the proxy's."""
    producer_groups: set[str] = field(default_factory=set)
    consumer_groups: dict[str, dict[str, Any]] = field(default_factory=dict)


def subscription_version(subscription: Mapping[str, Any]) -> int:
    """When its client made the subscription: a later one has a higher number; 0 when it says nothing usable."""
    version = subscription.get("subVersion")
    return version if isinstance(version, int) else 0


class Clients:
    """The connected clients, by client id and by group."""

    def __init__(self, *, expiry_ms: int, on_group_changed: Callable[[str], None]) -> None:
        self.expiry_ms = expiry_ms
        self._on_group_changed = on_group_changed
        self._clients: dict[str, GroupClient] = {}
        self._members: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[GroupClient]:
        return iter(list(self._clients.values()))

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

    def receiver_of(self, client_id: str) -> RequestReceiver | None:
        """Whose client this is; None for one that is not connected."""
        client = self._clients.get(client_id)
        return None if client is None else client.receiver

    def producers_of(self, group: str) -> list[GroupClient]:
        """The clients that produce for a group."""
        return [client for client in self._clients.values() if group in client.producer_groups]

    def subscription(self, group: str, topic: str) -> dict[str, Any] | None:
        """The newest subscription of a group to a topic that a member's heartbeat gave; None when there is none."""
        found: list[dict[str, Any]] = [
            subscription
            for client in self.clients_of(group)
            for subscription in client.consumer_groups[group].get("subscriptionDataSet") or ()
            if subscription.get("topic") == topic
        ]
        newest = max(found, key=subscription_version, default=None)
        return None if newest is None else dict(newest)

    def with_subscriptions(self, client_id: str, consumers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """A short heartbeat's groups with the subscriptions of the client's last full one, which it leaves out."""
        known = self._clients.get(client_id)
        kept = {} if known is None else known.consumer_groups
        return {group: {**kept.get(group, {}), **_named(consumer)} for group, consumer in consumers.items()}

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
        known.peer, known.seen_ms, known.receiver = client.peer, client.seen_ms, client.receiver
        known.language, known.version = client.language, client.version
        known.grpc_release = client.grpc_release
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
        silent = [client for client in self._clients.values() if now_ms - client.seen_ms > self.expiry_ms]
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


def _named(consumer: dict[str, Any]) -> dict[str, Any]:
    """What a consumer's part of a short heartbeat says."""
    return {name: value for name, value in consumer.items() if name != "subscriptionDataSet"}


RETRY_TIMES_MAX = 16


class GroupConfig(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One subscription group with the fields of RocketMQ's tools."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_TIMES_MAX
    notify_consumer_ids_changed_enable: bool = True
    consume_timeout_minute: int = 15
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    group_sys_flag: int = 0
    group_retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    attributes: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def priority_factor(self) -> int:
        """How many of 100 pops of a topic with priorities go by them; the others take its queues in turn."""
        return int(self.attributes.get(PRIORITY_FACTOR, PRIORITY_FACTOR_MAX))


LITE_BIND_TOPIC = "lite.bind.topic"
"""Attribute of a group: the parent topic whose lite topics it reads."""
LITE_QUOTA_MAX = 2**31 - 1


def _quota(value: str) -> bool:
    return value == "-1" or (value.isascii() and value.isdigit() and int(value[:11]) <= LITE_QUOTA_MAX)


PRIORITY_FACTOR = "priority.factor"
"""Attribute of a group: how many of 100 pops of a topic with priorities go by them."""
PRIORITY_FACTOR_MAX = 100


def _percentage(value: str) -> bool:
    return value.isascii() and value.isdigit() and int(value[:4]) <= PRIORITY_FACTOR_MAX


GROUP_ATTRIBUTES: dict[str, Callable[[str], bool]] = {
    LITE_BIND_TOPIC: names.valid_rocketmq_topic,
    "lite.sub.model": ("Shared", "Exclusive").__contains__,
    "lite.sub.client.quota": _quota,
    "lite.sub.client.max.event.cnt": _quota,
    "lite.sub.reset.offset.exclusive": ("true", "false").__contains__,
    "lite.sub.reset.offset.unsubscribe": ("true", "false").__contains__,
    PRIORITY_FACTOR: _percentage,
}
"""Rules for the values of some attributes of a group; others are kept as they are."""


def changed_attributes(kept: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """A group's attributes after a request's changes: `+name` or `name` sets, `-name` removes.

    Raises:
        Refused: a value outside its rule.
    """
    result = dict(kept)
    for signed, value in changes.items():
        name = signed.removeprefix("+").removeprefix("-")
        accepts = GROUP_ATTRIBUTES.get(name)
        if signed.startswith("-"):
            result.pop(name, None)
        elif accepts is not None and not accepts(value):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"attribute {name!r} of a group cannot be {value!r}")
        else:
            result[name] = value
    return result


_decode = msgspec.json.Decoder(GroupConfig).decode
_encode = msgspec.json.Encoder().encode


def retry_topic(group: str) -> str:
    """Topic that carries the messages a group could not consume."""
    return names.RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Topic for messages of a group that were tried too often."""
    return names.DLQ_PREFIX + group


RETRY_TOPIC, ORIGIN_ID = b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"
"""Properties of a message that is delivered again: the topic it was sent to at first, and its id there."""
DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_ID = b"DLQ_ORIGIN_TOPIC", b"DLQ_ORIGIN_MESSAGE_ID"


def dead_letter_origin(properties: Mapping[bytes, bytes], topic: bytes) -> dict[bytes, bytes]:
    """What a dead letter says of the message it was: its topic, and the id that its producer and consumers know.

    `properties`: those of the message that is given up, read from `topic`.
    """
    found = {
        DLQ_ORIGIN_TOPIC: properties.get(RETRY_TOPIC) or topic,
        DLQ_ORIGIN_ID: properties.get(UNIQUE_KEY) or properties.get(ORIGIN_ID, b""),
    }
    return {key: value for key, value in found.items() if value}


def configuration_in(value: bytes) -> GroupConfig:
    """The configuration in a value of GROUP."""
    found: GroupConfig = _decode(value)
    return found


def reads_lite(config: GroupConfig | None, topic: str) -> bool:
    """Whether a group reads the lite topics of this topic, or this light queue as one of them."""
    parent = "" if config is None else config.attributes.get(LITE_BIND_TOPIC, "")
    if not parent:
        return False
    below = names.light_queue_name(parent.encode() + b"/").decode()
    return topic == parent or topic.startswith(below)


def require_pull(config: GroupConfig | None, group: str, topic: str, modes: RequestModes) -> None:
    """Refused(ILLEGAL_OPERATION) when the group pops this topic or light queue, which no pull may bypass."""
    if reads_lite(config, topic):
        remark = f"the group [{group}] reads [{topic}] by subscriptions to lite topics (POP_LITE) only"
        raise modes.refuse("mode", ResponseCode.ILLEGAL_OPERATION, remark)
    modes.require_pull(group, topic)


class Groups:
    """The group table: configuration by name."""

    def __init__(self, store: LogStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        self.modes = RequestModes(store)
        self._configs = {
            bytes(key).decode(): _decode(value)
            for key, (value, _position) in list(store.state.items(state_kinds.GROUP))
        }

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(list(self._configs.values()))

    def get(self, group: str) -> GroupConfig | None:
        """Configuration of a group, or None."""
        return self._configs.get(group)

    def ensure(self, group: str, maker: str | None = None) -> GroupConfig:
        """The group's configuration; creates group and retry topic on first use. `maker`: see `Topics.ensure`.

        Raises:
            Refused: the name is not valid, or no topic can be created any more, at all or for this user.
        """
        known = self._configs.get(group)
        if known is not None:
            return known
        return self.put(GroupConfig(group_name=group), maker)

    def ensure_if_room(self, group: str) -> GroupConfig:
        """The same for a reader: on a full disk the group is not stored until there is room, and the reader continues.

        Raises:
            Refused: as `ensure`.
        """
        try:
            return self.ensure(group)
        except StoreFull:
            return GroupConfig(group_name=group)

    def meet(self, group: str) -> int:
        """A member of the group is there: create the group if there is room; the position that its answer waits for.

        Raises:
            Refused: as `ensure`.
        """
        self.ensure_if_room(group)
        return self._store.end_position

    def reads_lite(self, group: str, topic: str) -> bool:
        """Whether the group reads the lite topics of this topic, or this light queue as one of them."""
        return reads_lite(self._configs.get(group), topic)

    def require_pull(self, group: str, topic: str) -> None:
        """Refused(ILLEGAL_OPERATION) when the group pops this topic or light queue, which no pull may bypass."""
        require_pull(self._configs.get(group), group, topic, self.modes)

    def delete(self, group: str) -> int:
        """Remove a group; returns the position to wait for. Refused for an unknown one."""
        if group not in self._configs:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group [{group}] does not exist")
        changes = [StateChange(state_kinds.GROUP, group.encode(), None), *self.modes.forget(group)]
        position = self._store.append_state(changes)
        del self._configs[group]
        return position

    @staticmethod
    def check(wanted: Iterable[str]) -> None:
        """Refused: one of the names is not valid."""
        for group in wanted:
            if not names.valid_group(group):
                raise Refused(ResponseCode.INVALID_PARAMETER, f"group name [{group}] is not valid")

    def put(self, config: GroupConfig, maker: str | None = "") -> GroupConfig:
        """Create or change a group; its retry topic counts for `maker`, of an administrator's group for nobody."""
        self.check((config.group_name,))
        self._topics.ensure(retry_topic(config.group_name), max(1, config.retry_queue_nums), maker=maker)
        change = StateChange(state_kinds.GROUP, config.group_name.encode(), _encode(config))
        self._store.append_state([change])
        self._configs[config.group_name] = config
        return config


_OFFSET = struct.Struct("<q")


def group_offset_key(group: str, topic: str, index: int) -> bytes:
    """Key of one group's offset in one queue."""
    return b"\x00".join((group.encode(), topic.encode(), str(index).encode()))


def offset_change(group: str, topic: str, index: int, offset: int) -> StateChange:
    """The change that commits one group's offset in one queue."""
    return StateChange(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index), _OFFSET.pack(offset))


def offset_in(value: bytes) -> int:
    """The offset in a value of GROUP_OFFSET."""
    found: int = _OFFSET.unpack(value)[0]
    return found


WALK_ENTRIES = 1_024
"""Offsets after which a walk over all groups leaves the loop its turn."""
EVER = 2**63 - 1
"""A position after all others."""


class GroupOffsets:
    """Read and commit offsets of RocketMQ consumer groups."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def get(self, group: str, topic: str, index: int) -> tuple[int, int] | None:
        """(offset, log position that a reply showing it waits for), or None when the group never committed there."""
        found = self._store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index))
        return None if found is None else (offset_in(found[0]), found[1] + 1)

    def commit(self, items: Iterable[tuple[str, str, int, int]]) -> int:
        """Write (group, topic, index, offset) items as one record; returns the position to wait for."""
        return self._store.append_state([offset_change(*item) for item in items])

    def forget(self, group: str) -> int:
        """Remove all offsets of a group; returns the position to wait for."""
        return self.forget_queues((group, *queue) for queue in self.of_group(group))

    def forget_queues(self, queues: Iterable[tuple[str, str, int]]) -> int:
        """Remove the offsets at these (group, topic, index); returns the position to wait for."""
        changes = [StateChange(state_kinds.GROUP_OFFSET, group_offset_key(*queue), None) for queue in queues]
        return self._store.append_state(changes) if changes else 0

    def of_group(self, group: str) -> dict[QueueKey, int]:
        """All offsets of a group: (topic, index) -> offset; costs as much as the group has, whatever others have."""
        return {
            queue: offset
            for _group, queue, offset in map(_committed, self._store.state.group_offsets.of(group.encode()))
        }

    def groups(self) -> list[str]:
        """The groups that have offsets, by name."""
        return sorted(map(bytes.decode, self._store.state.group_offsets.owners()))

    async def by_group(self, topic: str | None = None) -> dict[str, dict[QueueKey, int]]:
        """Offsets of every group, of all topics or one: group -> (topic, index) -> offset.

        The loop has a turn before two times `WALK_ENTRIES` are read, so what is committed meanwhile may be among them.
        """
        state = self._store.state.group_offsets
        part = b"" if topic is None else b"\x00%b\x00" % topic.encode()
        found: dict[str, dict[QueueKey, int]] = {}
        looked = 0
        for _examined, entries in state.older(EVER):
            for first in range(0, len(entries), WALK_ENTRIES):
                several = entries[first : first + WALK_ENTRIES]
                for entry in several:
                    if part in entry[0]:
                        group, queue, offset = _committed(entry)
                        found.setdefault(group, {})[queue] = offset
                looked += len(several)
                if looked >= WALK_ENTRIES:
                    looked = 0
                    await asyncio.sleep(0)
        return found


def _committed(entry: tuple[bytes, tuple[bytes, int]]) -> tuple[str, QueueKey, int]:
    """Group, queue and offset of an entry of the table."""
    group, topic, index = entry[0].split(b"\x00")
    return group.decode(), (topic.decode(), int(index)), offset_in(entry[1][0])


Done = Callable[[Exception | None], None]
LIGHT = names.LMQ_PREFIX.decode()
COMMITS_WAIT_S = 0.1
"""How long a commit that is not answered may wait for others."""


class OffsetGather:
    """Collects commits and writes them at the end of the turn, or later when none of them is to be answered."""

    def __init__(self, offsets: GroupOffsets, store: LogStore, metrics: BrokerMetrics) -> None:
        self._offsets = offsets
        self._store = store
        self._metrics = metrics
        self._items: dict[tuple[str, str, int], int] = {}
        self._waiting: list[Done] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: str, topic: str, index: int, offset: int, done: Done | None = None) -> None:
        """Commit an offset; `done` is called with None when it is confirmed, else with the error."""
        self._items[group, topic, index] = offset
        if done is not None:
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self.flush)
            self._waiting.append(done)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COMMITS_WAIT_S, self.flush)

    def committed(self, group: str, topic: str, index: int) -> tuple[int, int] | None:
        """As `GroupOffsets.get`, after what has gathered is written: a query sees all commits before it."""
        self.flush()
        return self._offsets.get(group, topic, index)

    def flush(self) -> None:
        """Write the gathered commits as one record, without those that change nothing and need no answer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        items, self._items = self._items, {}
        items = {key: offset for key, offset in items.items() if not self._outlives(key[1], offset)}
        if not waiting:
            items = {key: offset for key, offset in items.items() if self._changes(key, offset)}
        if not items and not waiting:
            return
        try:
            position = self._offsets.commit((*key, offset) for key, offset in items.items())
        except StoreError as error:
            self._metrics.dropped.child("offset_not_written").value += len(items)
            for done in waiting:
                done(error)
            return

        def confirmed(error: Exception | None) -> None:
            for done in waiting:
                done(error)

        if waiting:
            self._store.when_confirmed(position, confirmed)

    def _outlives(self, topic: str, offset: int) -> bool:
        """Whether an offset is behind the end of a light queue: it is one of an earlier queue of that name."""
        if not topic.startswith(LIGHT) or not offset:
            return False
        queue = self._store.queues.find(topic.encode())
        outlives = queue is None or offset > self._store.reading.next_offset(queue)
        self._metrics.dropped.child("offset_of_ended_queue").value += outlives
        return outlives

    def _changes(self, key: tuple[str, str, int], offset: int) -> bool:
        known = self._offsets.get(*key)
        return known is None or known[0] != offset
