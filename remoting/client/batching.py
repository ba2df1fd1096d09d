"""Automatic batching: messages of a topic and queue are sent as one request, and on batch topics as one record.

A batch is sent when it is full (`batch_bytes_max`, `batch_count_max`), when its first message has waited `linger_ms`,
or at a flush. Each queue has a window (`in_flight.py`) of one request, so its messages are stored in the order of
`send`, even when a request is repeated. Unsent messages are bounded by `memory_bytes_max`; beyond it all batches are
sent, and `send` waits or refuses, depending on `when_full`.

    message ──▶ queue of its key, its `queue`, or the one being filled ──▶ batch ──▶ request ──▶ Sent

A request refused because the broker was busy is resent. One whose answer was lost may have been stored: with
`repeat_unanswered` it is resent (at least once, the default), without it its messages fail with the reason.
Invariant: every accepted message's future completes, with its place or with the error; a message that has its place is
never resent. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from remoting import clock
from remoting.batches import BatchRow
from remoting.client.admin import AsyncAdmin
from remoting.client.in_flight import FlightFrame, InFlight, WindowLimits
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_batch_image, encode_image
from remoting.protocol.records.names import queue_of
from remoting.protocol.records.record import BATCH_COUNT_MAX, CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import ConnectionLost, RequestTimeout, checked

OVERHEAD_BYTES = 120
"""Memory of a waiting message besides its texts."""
TEXT_BYTES_MAX = 0xFFFF
"""Longest key, tag, property or sum of properties: their length fields have 16 bits."""
BORN_MS_MAX = 2**53
"""Some 285,000 years: in microseconds still a signed 64-bit number."""


class Message(msgspec.Struct, kw_only=True):
    """One message. With a `key` it goes to the key's queue, with a `queue` to that one, otherwise to any queue."""

    topic: str
    body: bytes
    key: str = ""
    tag: str = ""
    properties: Mapping[str, str] = {}
    queue: int | None = None
    born_ms: int | None = None
    """Milliseconds since 1970; None: the time of `send`."""


class Sent(msgspec.Struct, frozen=True):
    """The place of a stored message."""

    topic: str
    queue: int
    offset: int


def to_row(message: Message, now_ms: int) -> BatchRow:
    """Return the message as a row. Raises LocalMisuse when a part of it does not fit a record."""
    try:
        key, tag = message.key.encode(), message.tag.encode()
        properties = tuple((name.encode(), value.encode()) for name, value in message.properties.items())
    except UnicodeEncodeError as error:
        raise LocalMisuse(f"a text of the message is not valid Unicode: {error}") from error
    if max(len(key), len(tag), sum(len(name) + len(value) for name, value in properties)) > TEXT_BYTES_MAX:
        raise LocalMisuse(f"key, tag and properties of a message have up to {TEXT_BYTES_MAX} bytes each")
    born_ms = now_ms if message.born_ms is None else message.born_ms
    if not 0 <= born_ms <= BORN_MS_MAX:
        raise LocalMisuse(f"born_ms is {born_ms}, 0 to {BORN_MS_MAX} are possible")
    return BatchRow(message.body, born_ms, key, tag, properties)


def size_of(row: BatchRow) -> int:
    """Return the bytes of memory that a waiting message counts for."""
    size = OVERHEAD_BYTES + len(row.body) + len(row.key) + len(row.tag)
    for name, value in row.properties:
        size += len(name) + len(value)
    return size


def image_of(row: BatchRow, topic: bytes, queue: int) -> bytes:
    """Return the message as a single record image, for a topic without batches."""
    return encode_image(
        flags=0,
        queue_index=queue,
        born_ms=row.born_ms,
        topic=topic,
        keys=row.key,
        tags=row.tag,
        properties=row.properties,
        body=row.body,
    )


LOG = logging.getLogger("remoting")

CODECS = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
BATCH_BYTES_LIMIT = 8 * 1024 * 1024
"""Upper limit of `batch_bytes_max`: a request has to fit a frame of 16 MiB."""
RETRY_PAUSE_MS = 100
"""Pause before a request is resent; grows with each attempt."""
_BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """When a batch is sent, how much may wait, and what happens beyond that."""

    batch_bytes_max: int = 1024 * 1024
    """Bytes of messages that make a batch full; a larger message is sent alone."""
    batch_count_max: int = 4_096
    """Messages that make a batch full."""
    linger_ms: int = 5
    """Longest time a message waits for others; 0 sends the messages of one loop turn together."""
    memory_bytes_max: int = 64 * 1024 * 1024
    """Bytes of accepted messages that are not stored yet."""
    when_full: str = "wait"
    """`wait` until there is room, or `refuse` with SYSTEM_BUSY."""
    codec: str = "lz4"
    """Compression of batch records: `none`, `lz4` (fast) or `zstd` (small). Ordinary topics are not compressed."""
    message_bytes_max: int = 4 * 1024 * 1024
    """Longest body: the broker's limit, checked here because it would refuse the whole batch."""
    attempts_max: int = 5
    """How often a request is sent before its messages fail."""
    repeat_unanswered: bool = True
    """Resend a request whose answer was lost: its messages may then be stored twice."""
    timeout_ms: int = REQUEST_TIMEOUT_MS
    """Longest wait for one answer."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_count_max <= BATCH_COUNT_MAX:
            raise LocalMisuse(f"batch_count_max is {self.batch_count_max}, 1 to {BATCH_COUNT_MAX} are possible")
        if min(self.batch_bytes_max, self.memory_bytes_max, self.attempts_max, self.message_bytes_max) < 1:
            raise LocalMisuse("batch_bytes_max, memory_bytes_max, message_bytes_max and attempts_max are at least 1")
        if self.batch_bytes_max > BATCH_BYTES_LIMIT:
            raise LocalMisuse(f"batch_bytes_max is {self.batch_bytes_max}, a request takes {BATCH_BYTES_LIMIT}")
        if self.linger_ms < 0 or self.when_full not in ("wait", "refuse") or self.codec not in CODECS:
            raise LocalMisuse(f"linger_ms >= 0, when_full wait or refuse, codec of {sorted(CODECS)}: not {self}")


Waiting = tuple[BatchRow, asyncio.Future[Sent]]
"""A message that is not stored yet."""
Batch = FlightFrame[Waiting]


@dataclass(slots=True)
class _Line:
    """One queue of one topic: its window and its sending task."""

    topic: str
    queue: int
    takes_batches: bool
    window: InFlight[Waiting]
    timer: asyncio.TimerHandle | None = None
    sender: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Topic:
    """A topic's description, and the queue being filled with messages without a key."""

    queue_count: int
    takes_batches: bool
    gathering_in: int = 0


class AsyncProducer:
    """Sends messages over a connection to a broker; with a `ReconnectingConnection` it survives a broker restart."""

    def __init__(
        self,
        connection: Connection,
        settings: ProducerSettings | None = None,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
        retry_pause_ms: int = RETRY_PAUSE_MS,
    ) -> None:
        self._connection = connection
        self._settings = settings or ProducerSettings()
        self._waiting_bytes_max = self._settings.memory_bytes_max
        self._limits = WindowLimits(
            frame_items_max=self._settings.batch_count_max,
            frame_bytes_max=self._settings.batch_bytes_max,
            attempts_max=self._settings.attempts_max,
        )
        self._now_ms = now_ms
        self._retry_pause_ms = retry_pause_ms
        self._topics: dict[str, _Topic] = {}
        self._asking: dict[str, asyncio.Task[_Topic]] = {}
        self._lines: dict[tuple[str, int], _Line] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self.waiting_bytes = 0
        self.requests_sent = 0
        self.requests_repeated = 0
        self.messages_stored = 0

    async def send(self, message: Message) -> asyncio.Future[Sent]:
        """Accept a message and return the future of its place; waits for the topic and, unless refusing, for room.

        Raises:
            LocalMisuse: the message does not fit a record.
            Refused: no such topic, no such queue, or no room (SYSTEM_BUSY) where `when_full` is `refuse`.
            ArrowMissing: a batch topic, and pyarrow is not installed.
        """
        topic = self._topics.get(message.topic)
        if topic is None or self._is_closed:
            self._check_open()
            topic = await self._open(message.topic)
            self._check_open()
        if len(message.body) > self._settings.message_bytes_max:
            limit = self._settings.message_bytes_max
            raise LocalMisuse(f"a message of {len(message.body)} bytes, the limit is {limit}")
        row = to_row(message, self._now_ms())
        size = size_of(row)
        while self.waiting_bytes and self.waiting_bytes + size > self._waiting_bytes_max:
            await self._wait_for_room()
            self._check_open()
        return self._accept(self._line(message, topic, row.key), row, size)

    async def flush(self) -> None:
        """Send all batches and wait until every message accepted so far is stored or has failed."""
        self.press()
        waiting = [future for line in self._lines.values() for _, future in line.window.waiting() if not future.done()]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Accept no more messages, send all batches, and wait for them."""
        self._is_closed = True
        self._wake()
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def press(self) -> None:
        """Send all batches without waiting for more messages."""
        for line in self._lines.values():
            line.window.press()
            self._start(line)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the producer is closed")

    async def _wait_for_room(self) -> None:
        self.press()
        if self._settings.when_full == "refuse":
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self.waiting_bytes} bytes are already waiting")
        room = asyncio.get_running_loop().create_future()
        self._waiting.append(room)
        await room

    def _accept(self, line: _Line, row: BatchRow, size: int) -> asyncio.Future[Sent]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sent] = loop.create_future()
        self.waiting_bytes += size
        if line.window.add((row, future), size):
            self._batch_closed(line)
            self._start(line)
        if line.timer is None and line.window.is_gathering:
            line.timer = loop.call_later(self._settings.linger_ms / 1000, self._lingered, line)
        return future

    def _line(self, message: Message, topic: _Topic, key: bytes) -> _Line:
        """Return the queue of a message: its own, its key's, or the one being filled until its batch is full."""
        queue = topic.gathering_in
        if message.queue is not None:
            queue = message.queue
            if not 0 <= queue < topic.queue_count:
                remark = f"queue {queue} of topic {message.topic!r} is not in 0..{topic.queue_count - 1}"
                raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        elif key:
            queue = queue_of(key, topic.queue_count)
        line = self._lines.get((message.topic, queue))
        if line is None:
            window: InFlight[Waiting] = InFlight(self._limits)
            line = self._lines[message.topic, queue] = _Line(message.topic, queue, topic.takes_batches, window)
        line.takes_batches = topic.takes_batches
        return line

    def _batch_closed(self, line: _Line) -> None:
        """Note that a batch is full or due: messages without a key go to the next queue from now on."""
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        topic = self._topics.get(line.topic)
        if topic is not None and topic.gathering_in == line.queue:
            topic.gathering_in = (line.queue + 1) % topic.queue_count

    def _lingered(self, line: _Line) -> None:
        line.timer = None
        line.window.press()
        self._start(line)

    def _start(self, line: _Line) -> None:
        if line.sender is None and line.window.is_ready:
            line.sender = asyncio.get_running_loop().create_task(self._send_line(line))

    async def _send_line(self, line: _Line) -> None:
        """Send the batches of one queue one after another, each when the previous one has ended."""
        try:
            while (batch := self._next(line)) is not None:
                try:
                    first = await self._store(line, batch)
                except LightMQError as error:
                    self._end(batch, line, error)
                except BaseException:
                    self._end(batch, line, ConnectionLost("the producer was stopped"))
                    raise
                else:
                    self._end(batch, line, first)
        finally:
            line.sender = None

    def _next(self, line: _Line) -> Batch | None:
        before = line.window.frames_closed
        batch = line.window.take()
        if line.window.frames_closed != before:
            self._batch_closed(line)
        return batch

    def _end(self, batch: Batch, line: _Line, outcome: int | LightMQError) -> None:
        self.waiting_bytes -= batch.size
        if isinstance(outcome, LightMQError):
            # The topic may have changed: its description is requested again before the next message.
            self._topics.pop(line.topic, None)
            line.window.refused(batch)
            for _, future in batch.items:
                if not future.done():
                    future.set_exception(outcome)
        else:
            self.messages_stored += len(batch.items)
            line.window.stored(batch)
            topic, queue = line.topic, line.queue
            for offset, (_, future) in enumerate(batch.items, outcome):
                if not future.done():
                    future.set_result(Sent(topic, queue, offset))
        self._wake()

    def _wake(self) -> None:
        """Wake callers that wait for room, in order of arrival."""
        waiting, self._waiting = self._waiting, deque()
        for room in waiting:
            if not room.done():
                room.set_result(None)

    async def _store(self, line: _Line, batch: Batch) -> int:
        """Store a batch and return the offset of its first message."""
        body, count = self._request(line, batch)
        while True:
            self.requests_sent += 1
            try:
                command = Command(RequestCode.APPEND_MANY, body=body)
                response = checked(await self._connection.request(command, self._settings.timeout_ms))
                break
            except (ConnectionLost, RequestTimeout, Refused) as error:
                if not line.window.may_repeat(batch) or not self._may_repeat(error):
                    raise
                LOG.warning("resending %d messages for %s/%d: %s", len(batch.items), line.topic, line.queue, error)
                await self._pause(batch.attempts, error)
            line.window.repeat(batch)
            assert line.window.take() is batch, "one batch of a queue is in flight"
            self.requests_repeated += 1
        places = decode_append_reply(response.body)[1]
        if len(places) != count or any(offset != places[0][1] + n for n, (_, offset) in enumerate(places)):
            raise RemoteViolation(f"the broker answered with the places {places[:3]} for {count} images of one queue")
        return places[0][1]

    async def _pause(self, attempt: int, error: LightMQError) -> None:
        """Wait before a repetition, but not after a lost connection: the request itself waits for the next one."""
        pauses = attempt - 1 if isinstance(error, ConnectionLost) else attempt
        if pauses:
            await asyncio.sleep(pauses * self._retry_pause_ms / 1000)

    def _may_repeat(self, error: LightMQError) -> bool:
        if isinstance(error, Refused):
            # A store that failed may have stored what it refused; a busy broker has not.
            unknown = error.code == ResponseCode.SERVICE_NOT_AVAILABLE
            return error.code in _BUSY or (unknown and self._settings.repeat_unanswered)
        return self._settings.repeat_unanswered

    def _request(self, line: _Line, batch: Batch) -> tuple[bytes, int]:
        """Return (request body, number of images): one image of all messages on a batch topic, else one per message."""
        topic = line.topic.encode()
        rows = [row for row, _ in batch.items]
        if not line.takes_batches:
            images = [image_of(row, topic, line.queue) for row in rows]
            return b"".join(images), len(images)
        from remoting.batches.unpack import arrow_body

        arrow = arrow_body()
        codec = CODECS[self._settings.codec]
        packed = arrow.encode(arrow.from_rows(rows), codec)
        born_ms = min(row.born_ms for row in rows)
        count = len(rows)
        image = encode_batch_image(
            topic=topic, queue_index=line.queue, born_ms=born_ms, body=packed, count=count, codec=codec
        )
        return image, 1

    async def _open(self, topic: str) -> _Topic:
        """Return a topic's queues and type, requested once for all callers that wait for it."""
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            task.add_done_callback(lambda _task: self._asking.pop(topic, None))
        found = self._topics[topic] = await asyncio.shield(task)
        return found

    async def _ask(self, topic: str) -> _Topic:
        admin = AsyncAdmin(self._connection, timeout_ms=self._settings.timeout_ms)
        config = await self._described(admin, topic)
        try:
            count = int(config["writeQueueNums"])
            takes_batches = (config.get("attributes") or {}).get("queue.type") == "BatchCQ"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteViolation(f"the broker's description of topic {topic!r} cannot be read: {config}") from error
        if count < 1:
            raise Refused(ResponseCode.NO_PERMISSION, f"topic {topic!r} has no queues to write to")
        if takes_batches:
            from remoting.batches.unpack import arrow_body

            arrow_body()
        return _Topic(count, takes_batches)

    async def _described(self, admin: AsyncAdmin, topic: str) -> dict[str, Any]:
        """Return the broker's description of a topic; repeated as often as a request that stores."""
        attempt = 1
        while True:
            try:
                return await admin.topic_config(topic, for_write=True)
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                raise Refused(error.code, f"{error.remark} Create it with: lightmq topics create {topic}") from error
            except (ConnectionLost, RequestTimeout) as error:
                if attempt >= self._settings.attempts_max:
                    raise
                await self._pause(attempt, error)
            attempt += 1
