"""Retained messages: the last known value of each MQTT topic, found by filter without a scan; how many there may be.

The store keeps the RETAINED table itself (key = MQTT topic, position = the message record with the retain flag; an
empty body deletes). Here is the view over it that a subscription needs: a topic tree, so that `plant/+/temp` visits
only the branches it can match. It is loaded from the table at start and follows it by the table's change callback, so
it is the same after a restart and after retention has moved a message.

The quota limits their number and their size together. A message that replaces one takes its place; an empty one clears
its topic and is always taken. How large the messages are that were retained before the start is learned while
`RetainedExpiry` reads them, so that for a while after a start the bytes are counted too low. Nothing is counted and
nothing kept in memory while there is no quota.

Invariant: the tree holds exactly the topics of the table; what was admitted but not stored in the end counts until its
topic is set or cleared, never beyond a restart. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.store.state import state_kinds
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.topics import TopicTree

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


class Retained:
    """Look-up of retained messages by topic filter."""

    def __init__(self, store: LogStore) -> None:
        self._tree: TopicTree[int] = TopicTree()
        for key, (_value, position) in list(store.state.items(state_kinds.RETAINED)):
            self._changed(bytes(key), b"", position)
        store.state.subscribe(state_kinds.RETAINED, self._changed)

    def __len__(self) -> int:
        return len(self._tree)

    def __contains__(self, topic: bytes) -> bool:
        return self._tree.get(topic) is not None

    def positions(self, topic_filter: bytes) -> list[int]:
        """Log positions of the retained messages a filter matches, oldest first."""
        return sorted(position for _topic, position in self._tree.match(topic_filter))

    def _changed(self, topic: bytes, value: bytes | None, position: int) -> None:
        if value is None:
            self._tree.delete(topic)
        else:
            self._tree.set(topic, position)


class RetainedQuota:
    """Admits retained messages."""

    def __init__(self, store: LogStore, retained: Retained, *, messages_max: int, bytes_max: int) -> None:
        self._retained = retained
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sizes: dict[bytes, int] = {}
        self.size_bytes = 0
        """Payload bytes of the retained messages that are known; 0 without a quota of bytes."""
        self.active = bool(messages_max or bytes_max)
        if bytes_max:
            store.state.subscribe(state_kinds.RETAINED, self._changed)

    def admit(self, wanted: Iterable[tuple[bytes, int]]) -> None:
        """Admit messages of (topic, payload bytes), all or none.

        Raises:
            Refused: FLOW_CONTROL, one of them is too many or too much.
        """
        last = dict(wanted)
        sizes = {topic: size for topic, size in last.items() if size}
        if self._messages_max:
            new = sum(topic not in self._retained for topic in sizes)
            if new and len(self._retained) + new > self._messages_max:
                raise Refused(ResponseCode.FLOW_CONTROL, f"retained_messages_max {self._messages_max} is reached")
        if self._bytes_max and sizes:
            more = sum(sizes.values()) - sum(self._sizes.get(topic, 0) for topic in sizes)
            if more > 0 and self.size_bytes + more > self._bytes_max:
                raise Refused(ResponseCode.FLOW_CONTROL, f"retained_bytes_max {self._bytes_max} is reached")
            for topic, size in sizes.items():
                self._set(topic, size)

    def seen(self, topic: bytes, payload_bytes: int) -> None:
        """The message that is retained is so large; known ones are known better."""
        if self._bytes_max and topic not in self._sizes:
            self._set(topic, payload_bytes)

    def _set(self, topic: bytes, size: int) -> None:
        self.size_bytes += size - self._sizes.get(topic, 0)
        self._sizes[topic] = size

    def _changed(self, topic: bytes, value: bytes | None, _position: int) -> None:
        if value is None:
            self.size_bytes -= self._sizes.pop(topic, 0)
