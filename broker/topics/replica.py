"""Topics and their queues at a replica, whose log fills the tables that a master has in memory.

Invariant: nothing is created here, and what is not known may only not have come yet. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from broker.store.state import state_kinds
from broker.topics.topics import TopicSettings, is_light, queue_name, require_readable, settings_in
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


class ReplicaTopics:
    """Topics and their queues as the log has them so far."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def find(self, topic: str, index: int) -> int | None:
        """Store queue id; None for a queue that is not known here."""
        if is_light(topic):
            return self._store.queues.find(topic.encode())
        known = self._store.state.get(state_kinds.TOPIC, topic.encode())
        return None if known is None else self._store.queues.find(queue_name(topic, index))

    def get(self, name: str) -> TopicSettings | None:
        """The settings of a parent topic; None where it is not known here."""
        known = self._store.state.get(state_kinds.TOPIC, name.encode())
        return None if known is None else settings_in(known[0])

    def require(self, name: str) -> TopicSettings:
        """The settings of a parent topic; Refused(TOPIC_NOT_EXIST) where it is not known here."""
        settings = self.get(name)
        if settings is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] is not known to this replica")
        return settings

    def __iter__(self) -> Iterator[TopicSettings]:
        """The settings of all parent topics that are known here."""
        return iter([settings_in(value) for _key, (value, _at) in self._store.state.items(state_kinds.TOPIC)])

    def queue_ids(self, name: str) -> list[int]:
        """Store ids of the queues of a parent topic by index; none where it is not known here."""
        found: list[int] = []
        for index in count():
            queue_id = self._store.queues.find(queue_name(name, index))
            if queue_id is None:
                break
            found.append(queue_id)
        return found

    def require_readable(self, topic: str) -> None:
        """Refused(NO_PERMISSION) when a parent topic is known and may not be read."""
        known = None if is_light(topic) else self.get(topic)
        if known is not None:
            require_readable(known)

    def owner(self, queue_id: int) -> tuple[str, int] | None:
        """(topic, index) a queue id belongs to; None for light queues."""
        topic, separator, index = self._store.queues.name(queue_id).partition(b"\x00")
        return (topic.decode(), int(index)) if separator else None
