"""Which queues readers get an answer for, how far, and under which name rights are asked.

Invariant: staged rows, waiting messages and queues that do not exist look alike: nothing is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from remoting.access.resources import of_topic
from remoting.protocol.errors import LocalMisuse

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics


class VisibleQueues:
    """Every queue but those in `hidden`, which others keep."""

    def __init__(self, store: LogStore, topics: Topics, hidden: Collection[int]) -> None:
        self._store = store
        self._topics = topics
        self._hidden = hidden

    def hidden(self, queue_id: int) -> bool:
        """True for queue ids no reader gets an answer for: staged rows, and ids that do not exist."""
        if queue_id in self._hidden:
            return True
        try:
            self._store.queue_name(queue_id)
        except LocalMisuse:
            return True
        return False

    def end(self, queue_id: int) -> int:
        """Confirmed end of a queue that readers may see; 0 for a queue that does not exist or is hidden."""
        return 0 if self.hidden(queue_id) else self._store.bounds(queue_id)[1]

    def title(self, queue_id: int) -> str:
        """The resource a queue is, for authorisation; empty for one that nobody may see."""
        owner = self._topics.owner(queue_id)
        if owner is not None:
            return of_topic(owner[0])
        return of_topic(self._store.queue_name(queue_id).decode()) if not self.hidden(queue_id) else ""
