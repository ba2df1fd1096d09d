"""Retained messages: which message is the last known value of each MQTT topic, found by filter without a scan.

The store keeps the RETAINED table itself (key = MQTT topic, position = the message record with the retain flag; an
empty body deletes). Here is the view over it that a subscription needs: a topic tree, so that `plant/+/temp` visits
only the branches it can match. It is loaded from the table at start and follows it by the table's change callback, so
it is the same after a restart and after retention has moved a message. There is no limit on the number of topics.

Invariant: the tree holds exactly the topics of the table. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.store.state import state_kinds
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
