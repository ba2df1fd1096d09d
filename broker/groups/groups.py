"""Consumer groups in the log: their configuration, the retry topic each has, and their offsets.

```
GROUP         key = group    value = JSON document with RocketMQ's field names
GROUP_OFFSET  key = group, 0x00, topic, 0x00, queue index as decimal text    value = offset i64 LE
```
A group exists from its first heartbeat or by an administrator. Its retry topic `%RETRY%group` (one queue) is created
with it, because clients ask for that route at once.

Offsets may move back (an administrator resets a group), so the last write wins. Clients commit often, queue by queue;
what arrives in one turn of the loop is one record (`OffsetGather`), the last commit of a queue wins. Invariant: a query
in the same turn sees the commits before it (they are written first). Loop thread only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from broker.store.errors import StoreError, StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

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
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


_decode = msgspec.json.Decoder(GroupConfig).decode
_encode = msgspec.json.Encoder().encode


def retry_topic(group: str) -> str:
    """Topic that carries the messages a group could not consume."""
    return names.RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Topic for messages of a group that were tried too often."""
    return names.DLQ_PREFIX + group


class Groups:
    """The group table: configuration by name."""

    def __init__(self, store: LogStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        self._configs = {
            bytes(key).decode(): _decode(value)
            for key, (value, _position) in list(store.state.items(state_kinds.GROUP))
        }

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(list(self._configs.values()))

    def get(self, group: str) -> GroupConfig | None:
        """Configuration of a group, or None."""
        return self._configs.get(group)

    def ensure(self, group: str) -> GroupConfig:
        """The group's configuration; creates group and retry topic on first use.

        Raises:
            Refused: the name is not valid, or no topic can be created any more.
        """
        known = self._configs.get(group)
        if known is not None:
            return known
        return self.put(GroupConfig(group_name=group))

    def ensure_if_room(self, group: str) -> GroupConfig:
        """The same for a reader: on a full disk the group is not stored until there is room, and the reader goes on.

        Raises:
            Refused: as `ensure`.
        """
        try:
            return self.ensure(group)
        except StoreFull:
            return GroupConfig(group_name=group)

    def delete(self, group: str) -> int:
        """Remove a group; returns the position to wait for. Refused for an unknown one."""
        if self._configs.pop(group, None) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the group [{group}] does not exist")
        return self._store.append_state([StateChange(state_kinds.GROUP, group.encode(), None)])

    def put(self, config: GroupConfig) -> GroupConfig:
        """Create or change a group."""
        if not names.valid_group(config.group_name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"group name [{config.group_name}] is not valid")
        self._topics.ensure(retry_topic(config.group_name), max(1, config.retry_queue_nums))
        change = StateChange(state_kinds.GROUP, config.group_name.encode(), _encode(config))
        self._store.append_state([change])
        self._configs[config.group_name] = config
        return config


_OFFSET = struct.Struct("<q")


def group_offset_key(group: str, topic: str, index: int) -> bytes:
    """Key of one group's offset in one queue."""
    return b"\x00".join((group.encode(), topic.encode(), str(index).encode()))


class GroupOffsets:
    """Read and commit offsets of RocketMQ consumer groups."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def get(self, group: str, topic: str, index: int) -> tuple[int, int] | None:
        """(offset, log position that a reply showing it waits for), or None when the group never committed there."""
        found = self._store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index))
        if found is None:
            return None
        value, position = found
        return _OFFSET.unpack(value)[0], position + 1

    def commit(self, items: Iterable[tuple[str, str, int, int]]) -> int:
        """Write (group, topic, index, offset) items as one record; returns the position to wait for."""
        changes = [
            StateChange(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index), _OFFSET.pack(offset))
            for group, topic, index, offset in items
        ]
        return self._store.append_state(changes)

    def forget(self, group: str) -> int:
        """Remove all offsets of a group; returns the position to wait for."""
        found = self.of_group(group)
        keys = [group_offset_key(group, topic, index) for topic, index in found]
        return (
            self._store.append_state([StateChange(state_kinds.GROUP_OFFSET, key, None) for key in keys]) if keys else 0
        )

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """All offsets of a group: (topic, index) -> offset."""
        return self.by_group(group).get(group, {})

    def by_group(self, wanted: str | None = None) -> dict[str, dict[tuple[str, int], int]]:
        """Offsets of every group, or of the wanted one: group -> (topic, index) -> offset."""
        prefix = b"" if wanted is None else wanted.encode() + b"\x00"
        found: dict[str, dict[tuple[str, int], int]] = {}
        for key, (value, _position) in self._store.state.items(state_kinds.GROUP_OFFSET):
            raw = bytes(key)
            if raw.startswith(prefix):
                group, topic, index = raw.split(b"\x00")
                found.setdefault(group.decode(), {})[topic.decode(), int(index)] = _OFFSET.unpack(value)[0]
        return found


Done = Callable[[Exception | None], None]


class OffsetGather:
    """Collects commits and writes them at the end of the turn."""

    def __init__(self, offsets: GroupOffsets, store: LogStore, metrics: BrokerMetrics) -> None:
        self._offsets = offsets
        self._store = store
        self._metrics = metrics
        self._items: dict[tuple[str, str, int], int] = {}
        self._waiting: list[Done] = []

    def add(self, group: str, topic: str, index: int, offset: int, done: Done | None = None) -> None:
        """Commit an offset; `done` is called with None when it is confirmed, else with the error."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.flush)
        self._items[group, topic, index] = offset
        if done is not None:
            self._waiting.append(done)

    def flush(self) -> None:
        """Write the gathered commits as one record."""
        if not self._items:
            return
        items, self._items = self._items, {}
        waiting, self._waiting = self._waiting, []
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
