"""Copies one queue: pull at the source, COPY_MESSAGES at the target, one request at a time, in the order of the source.

The target's log has how far the queue is copied, in the same atomic groups as the messages, so nothing here can be lost
by a crash: whenever an answer is missing, the copier reads the state of the target and continues there.

Invariant: no request is begun before the one before it is answered, or the state of the target was read again. Loop
thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from broker.migration.offset_map import BothWays, CopiedRun, OffsetMap
from lightmq.migrate.cluster import FOREVER_REFUSED
from remoting.client.consumer import AsyncConsumer
from remoting.client.master_link import Backoff
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from runtime.logs import get_logger

if TYPE_CHECKING:
    from lightmq.migrate.cluster import Cluster
    from lightmq.migrate.plan import QueueCopy
    from runtime.clock import Clock

PULL_GROUP = "TOOLS_CONSUMER"
"""A group that every RocketMQ broker has for its tools; nothing is committed for it."""
PULL_COUNT_MAX = 256
"""Messages asked for at once; RocketMQ's brokers give 32, or 8 from disk, unless they are configured otherwise."""
PAUSE_FIRST_MS, PAUSE_MS_MAX = 100, 5_000
NOW, AT_END_MS = 0, 15_000
"""How long a pull waits for messages."""


class CopyRate(Protocol):
    """Limits the rate of all copiers together."""

    async def take(self, messages: int) -> None:
        """Wait until so many more messages may be copied."""


@dataclass(slots=True)
class Counts:
    """What one queue's copier did."""

    wanted: int = 0
    """Source offsets that were still to be copied when the copier began; without `follow`."""
    copied: int = 0
    expired: int = 0
    """Source offsets that the source deleted before they were copied."""


class QueueCopier:
    """One queue, until it is copied to the end, or for ever."""

    def __init__(
        self, queue: QueueCopy, source: Cluster, target: Cluster, migration: str, pace: CopyRate, clock: Clock
    ) -> None:
        self.queue = queue
        self.counts = Counts()
        self.failure = ""
        """Why it does not get on at present."""
        self.failed_ms = 0
        """Since when (ms)."""
        self.is_loaded = False
        """Whether the target has told what is copied."""
        self._source = AsyncConsumer(
            source.connection(queue.source_broker), PULL_GROUP, queue.topic, queue.source_queue
        )
        self._target = target
        self.name = queue.named(migration)
        self._pace = pace
        self._clock = clock
        self._forth: dict[int, CopiedRun] = {}
        self._back: dict[int, CopiedRun] = {}
        self._backoff = Backoff(PAUSE_FIRST_MS, PAUSE_MS_MAX)
        self._log = get_logger("migrate")

    @property
    def offsets(self) -> BothWays:
        """Where messages are at both sides, as far as the target has answered."""
        return BothWays(OffsetMap(self._forth.values()), OffsetMap(self._back.values()))

    def reader(self, *, at_source: bool) -> AsyncConsumer:
        """Reads one side of the queue."""
        if at_source:
            return self._source
        queue = self.queue
        return AsyncConsumer(self._target.connection(queue.target_broker), PULL_GROUP, queue.topic, queue.target_queue)

    async def run(self, *, follow: bool) -> None:
        """Copy until the end of the source queue; `follow`: go on for ever, also after refusals.

        Raises LightMQError, without `follow`, for what a repetition does not change.
        """
        is_known = False
        while True:
            try:
                if not is_known:
                    await self.load()
                    is_known = True
                    if not (follow or self.counts.wanted):
                        self.counts.wanted = await self._missing()
                if not await self._step(wait_ms=AT_END_MS if follow else NOW) and not follow:
                    return
            except (LightMQError, OSError) as error:
                is_known = False
                if isinstance(error, Refused) and error.code in FOREVER_REFUSED and not follow:
                    raise
                await self._pause(error)
            else:
                self.failure = ""
                self._backoff.reached()

    async def _missing(self) -> int:
        """How many source offsets are not copied at present. Raises LightMQError."""
        begin, end = await self._source.min_offset(), await self._source.max_offset()
        return max(0, end - max(begin, self.offsets.copied or 0))

    async def load(self) -> None:
        """Learn from the target what is copied."""
        queue = self.queue
        found = await self._target.copied(queue.target_broker, self.name, queue.topic)
        self._forth.clear()
        self._back.clear()
        for known in found:
            if (known["source"], known["queue"]) == (self.name, queue.target_queue):
                self.note(known["runs"], known["returned"])
        self.is_loaded = True

    def note(self, runs: Iterable[list[int]], returned: Iterable[list[int]]) -> None:
        """Take over runs that the target has shown; those that have a source offset only are no more."""
        for known, changed in ((self._forth, runs), (self._back, returned)):
            for start, *rest in changed:
                if rest:
                    known[start] = CopiedRun(start, *rest)
                else:
                    known.pop(start, None)

    async def _step(self, *, wait_ms: int) -> bool:
        """Copy what one pull gives; False at the end of the queue. Raises LightMQError, RemoteViolation."""
        known = self.offsets.copied
        offset = await self._source.min_offset() if known is None else known
        pulled, body = await self._source.pull_stored(offset, PULL_COUNT_MAX, wait_ms)
        if not body:
            if pulled.next_offset < offset:
                remark = f"{self.queue.topic}/{self.name} ends at {pulled.next_offset}, {offset} was copied: was the"
                raise Refused(ResponseCode.PULL_OFFSET_MOVED, f"{remark} topic deleted, or messages lost, there?")
            if pulled.next_offset > offset:
                body = await self._behind_a_gap(offset, pulled.next_offset)
            if not body:
                return False
        await self._copy(known or 0, body)
        return True

    async def _behind_a_gap(self, offset: int, following: int) -> bytes:
        """The messages behind offsets that the source has deleted."""
        _pulled, body = await self._source.pull_stored(following, PULL_COUNT_MAX, NOW)
        if body:
            self.counts.expired += following - offset
            self._log.warning(
                "expired_at_source", topic=self.queue.topic, source=self.name, messages=following - offset
            )
        return body

    async def _copy(self, expected: int, body: bytes) -> None:
        queue = self.queue
        fields = {
            "topic": queue.topic, "queueId": str(queue.target_queue), "source": self.name, "expected": str(expected)
        }  # fmt: skip
        command = Command(RequestCode.COPY_MESSAGES, fields=fields, body=body)
        answer = checked(await self._target.connection(queue.target_broker).request(command))
        count = int(answer.fields.get("count", "0"))
        self.note(**msgspec.json.decode(answer.body, type=dict[str, list[list[int]]]))
        self.counts.copied += count
        if int(answer.fields.get("next", "-1")) != (self.offsets.copied or 0):
            raise RemoteViolation("the target has copied more than this migration has sent: does another one run?")
        await self._pace.take(count)

    async def _pause(self, error: Exception) -> None:
        if str(error) != self.failure:
            self.failure, self.failed_ms = str(error), self._clock.now_ms()
            self._log.warning("copy_failed", topic=self.queue.topic, source=self.name, error=str(error))
        pause_ms = self._backoff.failed(self._clock.monotonic_ns() / 1_000_000)
        assert pause_ms is not None, "its patience has no end"
        await asyncio.sleep(pause_ms / 1000)
