"""From an accepted entry to a message with its queues: the one place that decides where a message goes.

Used by append-many, by RocketMQ's send codes and by the commit of staged rows, so that all three agree on permissions,
automatic creation, queue choice and named light queues. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.meta.hot import Way
from broker.store.store_message import StoreMessage, mqtt_topic, property_value
from broker.subscriptions.dispatch import INNER_MULTI_DISPATCH
from broker.topics.topics import PERMISSION_WRITE
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import QUEUE_INDEX_ANY
from remoting.protocol.records.mqtt_properties import EXPIRY
from remoting.protocol.records.record import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_MASK,
    FLAG_FORMAT_SHIFT,
    FLAG_MQTT,
    FLAG_QOS_MASK,
    FLAG_RETAIN,
    FORMAT_ARROW,
)

if TYPE_CHECKING:
    from broker.subscriptions.dispatch import Dispatcher
    from broker.topics.topics import Topics
    from broker.topics.topics import TopicSettings as TopicConfig

KIND_MQTT = 0
KIND_QUEUE = 1
KIND_BATCH = 2
MQTT_OWN_PROPERTIES = 1
"""Properties every MQTT entry has: its topic. A device's has its client id too, a row of Spark has not."""
MQTT_DELAY, DELAY, TIMER_DELIVER = b"delay-ms", b"DELAY", b"TIMER_DELIVER_MS"
ENTRY_FLAGS_MASK = FLAG_QOS_MASK | FLAG_RETAIN
"""What a sender may set itself; grouping and staging are the broker's."""
BATCH_FLAGS = frozenset(
    FORMAT_ARROW << FLAG_FORMAT_SHIFT | codec << FLAG_CODEC_SHIFT for codec in (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD)
)
"""Formats and codecs of a batch's body that readers know; the body itself is the producer's and never opened here."""


class Placement:
    """Chooses queues; creates topics by use where that is allowed."""

    def __init__(
        self,
        topics: Topics,
        dispatcher: Dispatcher,
        *,
        queue_count: int,
        auto_create: bool,
        message_size_bytes_max: int,
        properties_bytes_max: int,
        retained_expiry: Callable[[bytes, int], None] = lambda _topic, _expiry_s: None,
    ) -> None:
        """`retained_expiry(topic, expiry_s)` is told of every message that is to be retained for so many seconds."""
        self._topics = topics
        self._dispatcher = dispatcher
        self._queue_count = queue_count
        self._auto_create = auto_create
        self._message_size_bytes_max = message_size_bytes_max
        self._properties_bytes_max = properties_bytes_max
        self._turn: dict[str, int] = {}
        self.divert: Callable[[StoreMessage, int, int], StoreMessage] | None = None
        """Takes placed messages that may wish to be delivered later; gives back what is to be appended now."""
        self.check_wait: Callable[[StoreMessage, int], None] | None = None
        """Refused when a placed message wishes to be delivered later and may not."""
        self._retained_expiry = retained_expiry
        self.way = Way(
            dispatcher.cached,
            dispatcher.mqtt,
            self._writable,
            self._turned,
            message_size_bytes_max,
            properties_bytes_max,
        )
        """What the hot loops need to place plain rows as `place` does."""

    def place(self, message: StoreMessage, kind: int, queue_index: int) -> StoreMessage:
        """Fill in the message's queues and flags: those of its topic, or where it waits for the time it names.

        Raises:
            Refused: as `place_now`, or it may not wait.
        """
        placed = self.place_now(message, kind, queue_index)
        if self.divert is not None and names_a_time(placed, kind):
            return self.divert(placed, kind, queue_index)
        return placed

    def place_staged(self, message: StoreMessage, kind: int, queue_index: int) -> StoreMessage:
        """As `place_now`, for a message that `place` is to see again: what that would refuse is refused already now.

        Raises:
            Refused: as `place_now`, or it may not wait.
        """
        placed = self.place_now(message, kind, queue_index)
        if self.check_wait is not None and names_a_time(placed, kind):
            self.check_wait(placed, kind)
        return placed

    def place_now(self, message: StoreMessage, kind: int, queue_index: int) -> StoreMessage:
        """Fill in the message's queues and flags whatever time it names.

        Raises:
            Refused: unknown or unwritable topic, queue out of range, too large, malformed MQTT entry.
        """
        if len(message.body) > self._message_size_bytes_max:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message body of {len(message.body)} bytes exceeds {self._message_size_bytes_max}",
            )
        if message.props_len > self._properties_bytes_max:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{message.props_len} bytes of properties exceed {self._properties_bytes_max}",
            )
        if kind == KIND_MQTT:
            return self._place_mqtt(message)
        if kind == KIND_QUEUE:
            return self._place_queue(message, queue_index)
        if kind == KIND_BATCH:
            return self._place_batch(message, queue_index)
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"entry kind {kind} is not known")

    def topic_for_write(self, name: str, queue_count: int | None = None) -> TopicConfig:
        """The topic's configuration, created by use if allowed; Refused when it cannot be written to."""
        config = self._topics.get(name)
        if config is None:
            if not self._auto_create:
                return self._topics.require(name)
            config = self._topics.ensure(name, queue_count or self._queue_count)
        if not config.permission & PERMISSION_WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return config

    def queue_index(self, config: TopicConfig, wanted: int) -> int:
        """The queue a message goes to: the wanted one, or the next in turn for a negative or QUEUE_INDEX_ANY wish."""
        if 0 <= wanted < config.write_queue_count:
            return wanted
        if 0 <= wanted != QUEUE_INDEX_ANY:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {wanted} of topic [{config.name}] is not in 0..{config.write_queue_count - 1}",
            )
        turn = self._turn.get(config.name, 0)
        self._turn[config.name] = turn + 1
        return turn % config.write_queue_count

    def _writable(self, topic: bytes) -> tuple[tuple[tuple[int, ...], ...], int]:
        """The queues of a topic to write to, by number, and its turns so far; Refused when it takes no writes."""
        config = self.topic_for_write(topic.decode("utf-8", "replace"))
        ids = self._topics.queue_ids(config.name)[: config.write_queue_count]
        return tuple((queue_id,) for queue_id in ids), self._turn.get(config.name, 0)

    def _turned(self, topic: bytes, count: int) -> None:
        name = topic.decode("utf-8", "replace")
        self._turn[name] = self._turn.get(name, 0) + count

    def _place_mqtt(self, message: StoreMessage) -> StoreMessage:
        topic = mqtt_topic(message)
        if topic is None:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the first property of an MQTT entry must be originMqttTopic")
        flags = message.flags & ENTRY_FLAGS_MASK
        message.flags = flags | FLAG_MQTT
        message.queues = self._dispatcher.mqtt(topic)
        if flags & FLAG_RETAIN and message.n_props > MQTT_OWN_PROPERTIES and EXPIRY in message.meta:
            expiry = property_value(message, EXPIRY)
            if expiry.isdigit():
                self._retained_expiry(topic, int(expiry))
        return message

    def _place_queue(self, message: StoreMessage, queue_index: int) -> StoreMessage:
        at = 4 * message.n_props
        name = message.meta[at : at + message.topic_len].decode("utf-8", "replace")
        config = self.topic_for_write(name)
        index = self.queue_index(config, queue_index)
        message.flags &= ~(0xFF & ~FLAG_QOS_MASK)
        light = property_value(message, INNER_MULTI_DISPATCH) if INNER_MULTI_DISPATCH in message.meta else b""
        message.queues = self._dispatcher.queue(name, index, light)
        return message

    def _place_batch(self, message: StoreMessage, queue_index: int) -> StoreMessage:
        """A batch goes to topics that were made for it alone: others have readers that know single records only."""
        name = message.meta[: message.topic_len].decode("utf-8", "replace")
        config = self._topics.require(name)
        if not config.takes_batches:
            remark = f"the topic[{name}] takes no batches; a batch topic is created with +queue.type=BatchCQ"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if message.flags not in BATCH_FLAGS:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"a batch of flags {message.flags:#x} is of no known format")
        self.topic_for_write(name)
        message.queues = self._dispatcher.queue(name, self.queue_index(config, queue_index))
        return message


def kind_of(flags: int) -> int:
    """Which of the KIND_* a message with these flags is."""
    return KIND_BATCH if flags & FLAG_FORMAT_MASK else KIND_MQTT if flags & FLAG_MQTT else KIND_QUEUE


def names_a_time(message: StoreMessage, kind: int) -> bool:
    """Whether the message may have a property that says when it is to be delivered; a quick look only."""
    if kind == KIND_MQTT:
        return message.n_props > MQTT_OWN_PROPERTIES and MQTT_DELAY in message.meta
    return kind == KIND_QUEUE and (DELAY in message.meta or TIMER_DELIVER in message.meta)
