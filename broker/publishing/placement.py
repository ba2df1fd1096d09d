"""From accepted images to their queues: the one place that decides where a message goes.

Used by append-many, by RocketMQ's send codes and by the commit of staged rows, so that all three agree on permissions,
automatic creation, queue choice and named light queues. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from broker.store.placed import Placed, property_value
from broker.subscriptions.filters import INNER_MULTI_DISPATCH
from broker.topics.topics import PERMISSION_WRITE, is_light
from remoting.native import core as native
from remoting.native.contracts import Times, Way
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.delay import names_a_time
from remoting.protocol.records.image import (
    KIND_BATCH,
    KIND_MQTT,
    KIND_QUEUE,
    QUEUE_INDEX_ANY,
    kind_of,
    packet_id_of,
    wanted_queue,
)
from remoting.protocol.records.properties import EXPIRY
from remoting.protocol.records.record import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_SHIFT,
    FLAG_RETAIN,
    FORMAT_ARROW,
    RecordView,
)

if TYPE_CHECKING:
    from broker.subscriptions.filters import Dispatcher
    from broker.topics.topics import Topics
    from broker.topics.topics import TopicSettings as TopicConfig

Admit = Callable[[int, RecordView], bool]
"""(number of an image with a packet id, the image) -> whether it is to be stored."""
BATCH_FLAGS = frozenset(
    FORMAT_ARROW << FLAG_FORMAT_SHIFT | codec << FLAG_CODEC_SHIFT for codec in (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD)
)
"""Formats and codecs of a batch's body that readers know; the body itself is the producer's and never opened here."""


class Waiting(Protocol):
    """Where images wait that name a later time."""

    times: Times
    """What the walk over images needs to have them wait."""
    none_wait: Times
    """The same, with no room for any: those that name a time are only reported."""

    def took(self, dues: bytes, /) -> None:
        """So many messages wait by `times`; `dues` as `Core.placed` returns them."""

    def gave_back(self, dues: bytes, /) -> None:
        """They are not appended after all."""

    def divert(self, image: RecordView, /) -> tuple[bytes, tuple[int, ...]] | None:
        """The waiting image made of one and its queues; None for what is due now. Raises Refused if it may not wait."""

    def check(self, image: RecordView, /) -> None:
        """Raise Refused when the image names a later time and may not wait for it."""


class QueueChoice:
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
        """`retained_expiry(topic, expiry_s)` is called for every message to be retained for that many seconds."""
        self._topics = topics
        self._dispatcher = dispatcher
        self.placing = dispatcher.placing
        """What is being placed."""
        self._queue_count = queue_count
        self._auto_create = auto_create
        self._message_size_bytes_max = message_size_bytes_max
        self._properties_bytes_max = properties_bytes_max
        self._turn: dict[str, int] = {}
        self._known: dict[bytes, tuple[str, tuple[tuple[int, ...], ...]]] = {}
        """RocketMQ topics that take writes -> name, queues by number; dropped when the topic changes."""
        topics.on_change(self._topic_changed)
        self._retained_expiry = retained_expiry
        self.way = Way(
            dispatcher.cached,
            dispatcher.mqtt,
            dispatcher.light,
            dispatcher.lit,
            self._writable,
            self._turned,
            self._too_large,
            message_size_bytes_max,
            properties_bytes_max,
        )
        """What the walk over images needs to know."""

    def configure(self, queue_count: int, *, auto_create: bool) -> None:
        """Create topics with so many queues by use from now on, or none."""
        self._queue_count, self._auto_create = queue_count, auto_create

    def queues_of(self, image: RecordView) -> tuple[int, ...]:
        """The queues of one image that asks for more than to be stored; refusals are those of `Placement.placed`."""
        kind = kind_of(image)
        if kind == KIND_MQTT:
            return self._queues_of_mqtt(image)
        name = image.topic.decode("utf-8", "replace")
        if kind == KIND_BATCH:
            self._check_batch(name, image.flags)
        config = self.topic_for_write(name)
        index = self.queue_index(config, wanted_queue(image))
        light = property_value(image, INNER_MULTI_DISPATCH) if kind == KIND_QUEUE else b""
        return self._dispatcher.queue(name, index, light)

    def _queues_of_mqtt(self, image: RecordView) -> tuple[int, ...]:
        topic = image.mqtt_topic
        assert topic is not None, "an image that was checked"
        queues = self._dispatcher.mqtt(topic)
        if image.flags & FLAG_RETAIN:
            expiry = property_value(image, EXPIRY)
            if expiry.isdigit():
                self._retained_expiry(topic, int(expiry))
        return queues

    def _check_batch(self, name: str, flags: int) -> None:
        """A batch goes to topics that were made for it alone: others have readers that know single records only."""
        if not self._topics.require(name).takes_batches:
            remark = f"the topic[{name}] takes no batches; a batch topic is created with +queue.type=BatchCQ"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if flags not in BATCH_FLAGS:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"a batch of flags {flags:#x} is of no known format")

    def _too_large(self, body_bytes: int, properties_bytes: int) -> Refused:
        if body_bytes > self._message_size_bytes_max:
            remark = f"the message body of {body_bytes} bytes exceeds {self._message_size_bytes_max}"
        else:
            remark = f"{properties_bytes} bytes of properties exceed {self._properties_bytes_max}"
        return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)

    def topic_for_write(self, name: str, queue_count: int | None = None) -> TopicConfig:
        """The topic's configuration, created by use if allowed; Refused when it cannot be written to."""
        refuse_reserved(name)
        if is_light(name):
            remark = (
                f"[{name}] is a light queue and no topic: send to its MQTT topic, or name it in INNER_MULTI_DISPATCH"
            )
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        config = self._topics.get(name)
        if config is None:
            if not self._auto_create:
                return self._topics.require(name)
            config = self._topics.ensure(name, queue_count or self._queue_count)
        if not config.permission & PERMISSION_WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return config

    def queue_index(self, config: TopicConfig, wanted: int) -> int:
        """The queue of a message: the requested one, or the next in turn for a negative number or QUEUE_INDEX_ANY."""
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
        known = self._known.get(topic)
        if known is None:
            config = self.topic_for_write(topic.decode("utf-8", "replace"))
            ids = self._topics.queue_ids(config.name)[: config.write_queue_count]
            known = self._known[topic] = config.name, tuple((queue_id,) for queue_id in ids)
        return known[1], self._turn.get(known[0], 0)

    def _topic_changed(self, name: str, _created: bool) -> None:
        self._known.pop(name.encode(), None)
        if self._topics.get(name) is None:
            self._turn.pop(name, None)

    def _turned(self, topic: bytes, count: int) -> None:
        name = topic.decode("utf-8", "replace")
        self._turn[name] = self._turn.get(name, 0) + count


def refuse_reserved(name: str) -> None:
    """Refused(NO_PERMISSION) for a topic to which no client sends, whatever protocol it speaks."""
    if names.forbids_sends(name):
        raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")


class Placement:
    """Turns images into messages with their queues; those that name a later time go to where they wait."""

    def __init__(self, choice: QueueChoice, waiting: Waiting | None = None) -> None:
        """Without `waiting` every message goes to its topic now."""
        self.choice = choice
        self._placing = choice.placing
        self._queues_of = choice.queues_of
        self._way = choice.way
        self._waiting = waiting
        self._times = None if waiting is None else waiting.times

    def placed(self, images: bytes, now: bool = False, admit: Admit | None = None) -> Placed:
        """The images with the queues of their topics, or of where they wait for the time they name.

        `now`: whatever time they name. `admit` is asked about those with a packet id; what it refuses is left out.

        Raises:
            Refused: unknown or unwritable topic, queue out of range, too large, or it may not wait.
            RemoteViolation: an image is malformed.
        """
        self._placing.images = images
        queues, odd, images, dues = native.core.placed(images, self._way, None if now else self._times)
        waiting = self._waiting
        if dues and waiting is not None:
            waiting.took(dues)
        if not odd:
            return Placed(images, queues)
        try:
            return self._placed_odd(images, queues, odd, now, admit)
        except BaseException:
            if dues and waiting is not None:
                waiting.gave_back(dues)
            raise

    def _placed_odd(
        self,
        images: bytes,
        queues: list[tuple[int, ...]],
        odd: list[tuple[int, int]],
        now: bool,
        admit: Admit | None,
    ) -> Placed:
        """As `placed`, for images of which those in `odd`, as (number, start), have no queues yet."""
        pieces: list[bytes] = []
        left_out: list[int] = []
        done = 0
        count = len(queues)
        for number, at in odd:
            image = RecordView(images, at)
            end = at + image.total
            if admit is not None and packet_id_of(image) and not admit(number, image):
                left_out.append(number)
                pieces.append(images[done:at])
                done = end
                continue
            count += image.count - 1
            queues[number] = self._queues_of(image)
            waiting = None if now or self._waiting is None or not names_a_time(image) else self._waiting.divert(image)
            if waiting is not None:
                pieces += (images[done:at], waiting[0])
                queues[number], done = waiting[1], end
        for number in reversed(left_out):
            del queues[number]
        pieces.append(images[done:])
        return Placed(b"".join(pieces), queues, count - len(left_out))

    def check(self, images: bytes) -> tuple[int, int]:
        """(images, messages in them), when all of them could be placed now; what `placed` would refuse is refused.

        Raises:
            Refused, RemoteViolation: as `placed`.
        """
        self._placing.images = images
        times = None if self._waiting is None else self._waiting.none_wait
        queues, odd, _images, _dues = native.core.placed(images, self._way, times)
        count = len(queues)
        for _number, at in odd:
            image = RecordView(images, at)
            self._queues_of(image)
            if self._waiting is not None and names_a_time(image):
                self._waiting.check(image)
            count += image.count - 1
        return len(queues), count
