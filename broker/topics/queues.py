"""Which store queue a client means, which queues readers get an answer for, and under which name rights are asked.

RocketMQ's clients name a queue by (topic, queue id): a parent queue, or a light queue by its name. A topic that begins
with %LMQ% is a light queue's own name and has the single queue 0; such a queue need not exist yet.

Invariant: staged rows, waiting messages and queues that do not exist look alike: nothing is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from broker.topics.topics import PERMISSION_READ
from remoting.access.resources import of_topic
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

_LIGHT = names.LMQ_PREFIX.decode()


def is_light(topic: str) -> bool:
    """True for the name of a light queue."""
    return topic.startswith(_LIGHT)


class ClientQueues:
    """Finds the queues that RocketMQ's clients name."""

    def __init__(self, store: LogStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    def find(self, topic: str, index: int) -> int | None:
        """Store queue id; None for a light queue that no message has reached yet.

        Raises:
            Refused: TOPIC_NOT_EXIST, INVALID_PARAMETER for a queue number out of range.
        """
        if is_light(topic):
            return self._store.queues.find(topic.encode())
        ids = self._topics.queue_ids(self._topics.require(topic).name)
        if not 0 <= index < len(ids):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"queueId[{index}] is illegal, topic:[{topic}] has {len(ids)} queues"
            )
        return ids[index]

    def require_readable(self, topic: str) -> None:
        """Refused(NO_PERMISSION) when a parent topic may not be read."""
        if not is_light(topic) and not self._topics.require(topic).permission & PERMISSION_READ:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")


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
            self._store.queues.name(queue_id)
        except LocalMisuse:
            return True
        return False

    def end(self, queue_id: int) -> int:
        """Confirmed end of a queue that readers may see; 0 for a queue that does not exist or is hidden."""
        return 0 if self.hidden(queue_id) else self._store.reading.bounds(queue_id)[1]

    def title(self, queue_id: int) -> str:
        """The resource a queue is, for authorisation; empty for one that nobody may see."""
        owner = self._topics.owner(queue_id)
        if owner is not None:
            return of_topic(owner[0])
        return of_topic(self._store.queues.name(queue_id).decode()) if not self.hidden(queue_id) else ""
