"""Which store queue a RocketMQ client means by (topic, queue id): a parent queue, or a light queue by its name.

A topic that begins with %LMQ% is a light queue's own name and has the single queue 0; such a queue need not exist yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.meta.topics import PERMISSION_READ
from remoting.protocol import names
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import Refused

if TYPE_CHECKING:
    from broker.api.context import Broker

_LIGHT = names.LMQ_PREFIX.decode()


def is_light(topic: str) -> bool:
    """True for the name of a light queue."""
    return topic.startswith(_LIGHT)


def find_queue(broker: Broker, topic: str, index: int) -> int | None:
    """Store queue id; None for a light queue that no message has reached yet.

    Raises:
        Refused: TOPIC_NOT_EXIST, INVALID_PARAMETER for a queue number out of range.
    """
    if is_light(topic):
        return broker.store.find_queue(topic.encode())
    ids = broker.topics.queue_ids(broker.topics.require(topic).name)
    if not 0 <= index < len(ids):
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"queueId[{index}] is illegal, topic:[{topic}] has {len(ids)} queues"
        )
    return ids[index]


def require_readable(broker: Broker, topic: str) -> None:
    """Refused(NO_PERMISSION) when a parent topic may not be read."""
    if not is_light(topic) and not broker.topics.require(topic).permission & PERMISSION_READ:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
