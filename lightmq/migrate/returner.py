"""Mirrors what producers send here back to the source, one queue: pull here, send there, one request at a time.

RocketMQ's brokers store what is sent twice twice, and keep no record for us. So each message carries where it came from
(`broker.migration.returned`); the copier of the same queue finds it at the source and lets the log here record it.
After a start, and after every failure, nothing is sent before the copier has read all that the source has: what arrived
then is recorded, and what is not recorded did not arrive.

Messages that were copied from the source are left out: the broker here says which they are, after they were read.
Delays and transactions are over when a message can be read, so their properties are dropped.

Invariant: a message is sent when all before it in its queue were answered, or found at the source. Loop thread only.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from broker.migration.returned import CLAIM_MS, RETURNED_KEY, ReturnMark
from lightmq.migrate.copier import PAUSE_FIRST_MS, PAUSE_MS_MAX, PULL_COUNT_MAX
from remoting.client.master_link import Backoff
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import DLQ_PREFIX, RETRY_PREFIX
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.rocketmq_form import ORIGIN_KEYS, BatchMessage, encode_batch
from remoting.transport.failures import checked
from runtime.logs import get_logger

if TYPE_CHECKING:
    from lightmq.migrate.cluster import Cluster
    from lightmq.migrate.copier import QueueCopier
    from remoting.protocol.records.stored_message import StoredMessage
    from runtime.clock import Clock

PRODUCER_GROUP = "LIGHTMQ_MIGRATION"
DROPPED_KEYS = ORIGIN_KEYS | {
    b"DELAY", b"TIMER_DELAY_LEVEL", b"TIMER_DELAY_MS", b"TIMER_DELAY_SEC", b"TIMER_DELIVER_MS", b"TIMER_OUT_MS",
    b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"TIMER_ROLL_TIMES", b"TIMER_DEL_UNIQKEY", b"TRAN_MSG",
    b"INNER_MULTI_QUEUE_OFFSET", RETURNED_KEY,
}  # fmt: skip
"""Properties that would make the source hold a message back, or that each broker writes itself."""
BATCH_BYTES_MAX = 1024 * 1024
"""Bytes of bodies in one batch."""
COMPRESSED, COMPRESSION_KIND = 0x1, 0x700
"""Bits of sysFlag."""
WAIT_MS = CLAIM_MS // 3
"""How long a pull waits for messages; the queue stays held."""
LOOK_S = 0.1
"""Pause before the copier's progress is looked at again."""
LATE_S = 1.0
"""How long after a failure a request may still be stored at the source; its brokers refuse what has waited 200 ms."""
RETRIES_MAX = 2**31 - 1


class QueueReturner:
    """One queue, for ever; begins when the queue is to be mirrored back."""

    def __init__(self, copier: QueueCopier, source: Cluster, target: Cluster, clock: Clock) -> None:
        self.failure = ""
        """Why it does not get on at present."""
        self.failed_ms = 0
        """Since when (ms)."""
        self.sent = 0
        self._copier = copier
        self._queue = copier.queue
        self._source, self._target = source, target
        self._here, self._there = copier.reader(at_source=False), copier.reader(at_source=True)
        self._holder = uuid.uuid4().hex
        self._backoff = Backoff(PAUSE_FIRST_MS, PAUSE_MS_MAX)
        self._clock = clock
        self._log = get_logger("migrate")

    async def run(self) -> None:
        """Mirror back for ever; the copier of the queue has to run, too."""
        offset: int | None = None
        while True:
            try:
                if offset is None:
                    offset = await self._begin()
                offset = await self._step(offset)
            except (LightMQError, OSError) as error:
                offset = None
                await self._pause(error)
            else:
                self.failure = ""
                self._backoff.reached()

    async def _begin(self) -> int:
        """The offset here of the first message that is not at the source. Raises LightMQError."""
        await self._claim(0, 0)
        await asyncio.sleep(LATE_S)
        end = await self._there.max_offset()
        while (self._copier.offsets.copied or 0) < end:
            await asyncio.sleep(LOOK_S)
            await self._claim(0, 0)
        return self._copier.offsets.back.target_end

    async def _claim(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Hold the queue; returns the ranges of these offsets that were copied from the source. Raises Refused."""
        fields = {**self._fields(), "holder": self._holder, "begin": str(begin), "end": str(end)}
        answer = await self._target.ask(self._queue.target_broker, RequestCode.CLAIM_RETURN, fields)
        return msgspec.json.decode(answer.body, type=list[tuple[int, int]])

    def _fields(self) -> dict[str, str]:
        queue = self._queue
        return {"topic": queue.topic, "queueId": str(queue.target_queue), "source": self._copier.name}

    async def _step(self, offset: int) -> int:
        """Mirror back what one pull gives; returns the offset behind it. Raises LightMQError."""
        pulled = await self._here.pull(offset, PULL_COUNT_MAX, WAIT_MS)
        end = pulled.messages[-1].queue_offset + 1 if pulled.messages else max(offset, pulled.next_offset)
        copies = await self._claim(offset, end)
        own = [one for one in pulled.messages if not any(at <= one.queue_offset < behind for at, behind in copies)]
        for part in self._parts(own):
            command = self._sending(part)
            checked(await self._source.connection(self._queue.source_broker).request(command))
            self.sent += len(part)
            await self._claim(offset, offset)
        return end

    def _parts(self, messages: Iterable[StoredMessage]) -> Iterator[list[StoredMessage]]:
        """Messages that one request can carry."""
        single = self._queue.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        part: list[StoredMessage] = []
        size = 0
        for message in messages:
            alone = single or message.sys_flag & COMPRESSED or message.reconsume_times
            if part and (alone or size + len(message.body) > BATCH_BYTES_MAX):
                yield part
                part, size = [], 0
            part.append(message)
            size += len(message.body)
            if alone:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _sending(self, part: list[StoredMessage]) -> Command:
        """The request that sends messages to the source."""
        queue, first = self._queue, part[0]
        properties = [self._marked(one, first.born_ms) for one in part]
        batch = len(part) > 1
        fields = {
            "a": PRODUCER_GROUP, "b": queue.topic, "c": "TBW102", "d": "1", "e": str(queue.source_queue),
            "f": str(first.sys_flag & (COMPRESSED | COMPRESSION_KIND)), "g": str(first.born_ms), "h": str(first.flag),
            "i": "" if batch else encode_properties(properties[0]).decode("utf-8", "replace"),
            "j": str(first.reconsume_times), "k": "false", "l": str(RETRIES_MAX), "m": str(batch).lower(),
        }  # fmt: skip
        if not batch:
            return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=first.body)
        body = encode_batch(
            [BatchMessage(one.body, pairs, one.flag) for one, pairs in zip(part, properties, strict=True)]
        )
        return Command(RequestCode.SEND_BATCH_MESSAGE, fields=fields, body=body)

    def _marked(self, message: StoredMessage, born_ms: int) -> list[tuple[bytes, bytes]]:
        queue = self._queue
        mark = ReturnMark(self._copier.name, queue.topic, queue.target_queue, message.queue_offset, born_ms)
        kept = [(key, value) for key, value in message.properties if key not in DROPPED_KEYS]
        return [*kept, (RETURNED_KEY, mark.encode())]

    async def _pause(self, error: Exception) -> None:
        if str(error) != self.failure:
            self.failure, self.failed_ms = str(error), self._clock.now_ms()
            self._log.warning("return_failed", topic=self._queue.topic, source=self._copier.name, error=str(error))
        pause_ms = self._backoff.failed(self._clock.monotonic_ns() / 1_000_000)
        assert pause_ms is not None, "its patience has no end"
        await asyncio.sleep(pause_ms / 1000)
