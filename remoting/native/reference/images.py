"""The pure twin: checks record images one by one and finds their queues.

Invariant: an image is refused with the error text of `image.check_image`. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.image import (
    KIND_BATCH,
    KIND_MQTT,
    QUEUE_INDEX_ANY,
    hide,
    iter_images,
    kind_of,
    packet_id_of,
    show,
    wanted_queue,
)
from remoting.protocol.records.properties import EXPIRY
from remoting.protocol.records.record import FLAG_RETAIN, FLAG_STAGED, RecordView, check_record, header_of

if TYPE_CHECKING:
    from remoting.native.contracts import Blob, QueuesOfTopic, Starts, Way

MQTT_DELAY, DELAY, TIMER, LIGHT_QUEUES = b"delay-ms", b"DELAY", b"TIMER_", b"INNER_MULTI_DISPATCH"


def asks_more(image: RecordView) -> bool:
    """Whether an image needs more than storing."""
    kind = kind_of(image)
    if kind == KIND_BATCH or packet_id_of(image):
        return True
    keys = [key for key, _value in image.properties()]
    if kind == KIND_MQTT:
        return MQTT_DELAY in keys or bool(image.flags & FLAG_RETAIN and EXPIRY in keys)
    timed = any(key.startswith(TIMER) and len(key) > len(TIMER) for key in keys)
    return timed or DELAY in keys or LIGHT_QUEUES in keys


class _Walk:
    """Placement during one call: the queues of RocketMQ topics with their round-robin counts."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._known: dict[bytes, tuple[QueuesOfTopic, int]] = {}
        self.counts: dict[bytes, int] = {}

    def go(self, image: RecordView) -> tuple[int, ...] | None:
        """Return the queues of an image, None when it names a queue that does not exist."""
        topic = image.mqtt_topic
        if topic is not None:
            return self._way.queues.get(topic) or self._way.missed(topic)
        topic = image.topic
        if topic not in self._known:
            self._known[topic] = self._way.writable(topic)
        queues, turn = self._known[topic]
        wanted = wanted_queue(image)
        if wanted != QUEUE_INDEX_ANY:
            return queues[wanted] if wanted < len(queues) else None
        count = self.counts.get(topic, 0)
        self.counts[topic] = count + 1
        return queues[(turn + count) % len(queues)]


def placed(images: bytes, way: Way) -> tuple[list[tuple[int, ...] | None], list[tuple[int, int]]]:
    """Return the queues of each image, and (number, start) of those that need more than storing, with queues None."""
    walk = _Walk(way)
    queues: list[tuple[int, ...] | None] = []
    odd: list[tuple[int, int]] = []
    at = 0
    for number, image in enumerate(iter_images(images)):
        properties_bytes = header_of(image).props_len
        if len(image.body) > way.body_bytes_max or properties_bytes > way.properties_bytes_max:
            raise way.too_large(len(image.body), properties_bytes)
        found = None if asks_more(image) else walk.go(image)
        if found is None:
            odd.append((number, at))
        queues.append(found)
        at += image.total
    for topic, count in walk.counts.items():
        way.turned(topic, count)
    return queues, odd


def topics(images: bytes) -> set[bytes]:
    """Return the distinct topics of the images."""
    return {image.mqtt_topic or image.topic for image in iter_images(images)}


def hidden(images: bytes, own: int) -> bytes:
    """Return checked images as staged ones; `own` is kept in the upper half of their producer_seq."""
    return b"".join([hide(image, own) for image in iter_images(images)])


def shown(blob: Blob, starts: Starts) -> bytes | None:
    """Return staged records as the images they were sent as; None when one is not sound."""
    made = []
    try:
        for start in starts:
            check_record(blob, int(start), None)
            record = RecordView(blob, int(start))
            if not record.flags & FLAG_STAGED:
                return None
            made.append(show(record))
    except CorruptRecord:
        return None
    return b"".join(made)
