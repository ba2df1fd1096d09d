"""Which store queue a RocketMQ client means by (topic, queue id): a parent queue, or a light queue by its name.

A topic that begins with %LMQ% is a light queue's own name and has the single queue 0; such a queue need not exist yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.topics.topics import PERMISSION_READ
from remoting.protocol.errors import Refused
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
            return self._store.find_queue(topic.encode())
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
