"""The pure twin: checks record images one by one, finds their queues, and stages those that wait for their time.

Invariant: an image is refused with the error text of `image.check_image`; what is refused is not counted as waiting.
Thread rule: pure functions, but for the counts of spans, which are the loop thread's.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from remoting.native.contracts import SPAN_MS
from remoting.protocol.errors import CorruptRecord, RemoteViolation
from remoting.protocol.records.delay import due_ms, names_a_time
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
    from remoting.native.contracts import Blob, QueuesOfTopic, Starts, Times, Way

LIGHT_QUEUES = b"INNER_MULTI_DISPATCH"


def asks_more(image: RecordView) -> bool:
    """Whether an image needs more than storing."""
    kind = kind_of(image)
    if kind == KIND_BATCH or packet_id_of(image):
        return True
    retained = kind == KIND_MQTT and bool(image.flags & FLAG_RETAIN)
    return retained and any(key == EXPIRY for key, _value in image.properties())


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
            return self._lit(image, queues[wanted]) if wanted < len(queues) else None
        count = self.counts.get(topic, 0)
        self.counts[topic] = count + 1
        return self._lit(image, queues[(turn + count) % len(queues)])

    def _lit(self, image: RecordView, queues: tuple[int, ...]) -> tuple[int, ...]:
        """Return these queues and the light queues that the image names."""
        value = next((value for key, value in image.properties() if key == LIGHT_QUEUES), b"")
        return queues + (self._way.light.get(value) or self._way.lit(value)) if value else queues


class _Waits:
    """One call's messages that wait: their due times, counted in their spans."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._limits: tuple[int, int, int, int, int] | None = None
        self.dues: list[int] = []

    def wait(self, image: RecordView) -> tuple[tuple[int, ...], bytes] | None:
        """Return (queues, staged image) of a message that waits, or no queues for one that is due.

        None when it may not wait for the time it names.
        """
        self._limits = self._limits or self._times.limits()
        base_ms, floor_ms, delay_ms_max, more, per_second_max = self._limits
        try:
            due = due_ms(image, base_ms)
        except RemoteViolation:
            return None
        if due is None or due <= floor_ms:
            return (), b""
        if due - floor_ms > delay_ms_max or len(self.dues) >= more:
            return None
        start = due - due % SPAN_MS
        span = self._times.spans.get(start) or self._times.opened(start)
        second = due % SPAN_MS // 1_000
        if per_second_max and span.count(second) >= per_second_max:
            return None
        span.add(second, 1)
        self.dues.append(due)
        return span.queues, hide(image, due - start)

    def undo(self) -> None:
        """Count none of them: the call fails."""
        for due in self.dues:
            self._times.spans[due - due % SPAN_MS].add(due % SPAN_MS // 1_000, -1)


def placed(
    images: bytes, way: Way, times: Times | None
) -> tuple[list[tuple[int, ...] | None], list[tuple[int, int]], bytes, bytes]:
    """Return the queues of each image, what they cannot be told of, and what waits; see `contracts.Core.placed`."""
    waits = None if times is None else _Waits(times)
    try:
        queues, odd, pieces = _placed(images, way, waits)
    except BaseException:
        if waits is not None:
            waits.undo()
        raise
    return queues, odd, b"".join(pieces), array("q", [] if waits is None else waits.dues).tobytes()


def _placed(
    images: bytes, way: Way, waits: _Waits | None
) -> tuple[list[tuple[int, ...] | None], list[tuple[int, int]], list[bytes]]:
    """Return the queues of each image, (number, start) of those whose queues are None, and the images."""
    walk = _Walk(way)
    queues: list[tuple[int, ...] | None] = []
    odd: list[tuple[int, int]] = []
    pieces: list[bytes] = []
    at = 0
    for number, image in enumerate(iter_images(images)):
        properties_bytes = header_of(image).props_len
        if len(image.body) > way.body_bytes_max or properties_bytes > way.properties_bytes_max:
            raise way.too_large(len(image.body), properties_bytes)
        found = None if asks_more(image) else walk.go(image)
        piece = images[at : at + image.total]
        if found is not None and waits is not None and names_a_time(image):
            waiting = waits.wait(image)
            found, piece = (None, piece) if waiting is None else waiting if waiting[0] else (found, piece)
        if found is None:
            odd.append((number, at))
        queues.append(found)
        pieces.append(piece)
        at += image.total
    for topic, count in walk.counts.items():
        way.turned(topic, count)
    return queues, odd, pieces


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
