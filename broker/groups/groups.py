"""Consumer groups: their configuration and the retry topic each has.

A group exists from its first heartbeat or by an administrator. Its retry topic `%RETRY%group` (one queue) is created
with it, because clients ask for that route at once. The configuration is a JSON document per group in the GROUP state
table, with RocketMQ's field names. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from broker.store.errors import StoreFull
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

RETRY_TIMES_MAX = 16


class GroupConfig(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One subscription group as RocketMQ's tools know it."""

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
    """Door to the group table."""

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
        """The same for who only reads: a full disk keeps nobody from it, the group is made when there is room.

        Raises:
            Refused: as `ensure`.
        """
        try:
            return self.ensure(group)
        except StoreFull:
            return GroupConfig(group_name=group)

    def delete(self, group: str) -> int:
        """Forget a group; returns the position to wait for. Refused for an unknown one."""
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
