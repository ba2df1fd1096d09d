"""Delivers what is due to another group's master while a replica stands in (RocketMQ's escape): delayed messages, and
messages of POP whose time is over (`revival`).

    confirmed messages that wait -> those due now -> a master of another group, by the route -> journal -> own master

Delayed messages of RocketMQ's producers only; what is not due, what MQTT's clients delayed, and what no other group
takes waits for this group's master. A message is sent without its delay, with its properties, and `ESCAPED_FROM`: group
and log position. That it was sent is written to the journal after the other master has acknowledged it, and the next
master of this group passes it over (`broker.delayed.merging`).

Invariant: nothing is noted that was not acknowledged. A crash between acknowledgement and journal, or an answer that is
lost, delivers a message twice. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.acting.abroad import OtherGroups
from broker.acting.journal import ActingJournal
from broker.acting.kinds import ESCAPES
from broker.acting.revival import ActingRevival
from broker.delayed.buckets import DelayBucket, DelayBuckets
from broker.store.errors import StoreError
from broker.store.index.absence import Absence
from remoting import background
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.records.delay import TIMED
from remoting.protocol.records.image import KIND_QUEUE, kind_of
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.rocketmq_form import NO_HOST, stored_message
from remoting.protocol.records.stored_message import iter_stored

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

PAUSE_S, RETRY_S = 0.2, 1.0
GROUP_MAX = 64
"""Messages on their way at the same time."""
SCAN_MAX = 16_384


class EscapeBridge:
    """The way out of a group that has no master."""

    def __init__(
        self,
        journal: ActingJournal,
        others: OtherGroups,
        revival: ActingRevival,
        *,
        store: Callable[[], LogStore | None],
        acts: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """`store`: the open log, None between two roles. `acts`: whether this broker stands in. `now_ms`: the wall
        clock."""
        self._journal, self._others, self._revival = journal, others, revival
        self._store, self._acts, self._now_ms = store, acts, now_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for what is due."""
        self._revival.start()
        self._task = background.task(self._run(), "sends due messages to other groups")

    async def stop(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            store, is_done = self._store(), True
            if store is not None and self._acts():
                try:
                    is_done = await self._deliver(store, self._now_ms())
                    is_done = await self._revival.deliver(store, self._acts) and is_done
                except (LightMQError, StoreError, OSError) as error:
                    is_done = False
                    self._others.say(str(error))
                finally:
                    await self._others.hang_up()
            await asyncio.sleep(PAUSE_S if is_done else RETRY_S)

    async def _deliver(self, store: LogStore, now_ms: int) -> bool:
        """Send what is due; False when some of it is to be tried again."""
        buckets, is_done = DelayBuckets(store, set()), True
        for bucket in buckets.after(0):
            if bucket.start_ms > now_ms:
                break
            cursor, end = bucket.open(), store.reading.confirmed_end(bucket.queue_id)
            bucket.mark_seen(end, now_ms)
            while cursor < end:
                found = buckets.dues(bucket, cursor, SCAN_MAX)
                if found.after == cursor:
                    break
                bucket.seen(cursor, found.dues, found.positions)
                bucket.skip(found.after)
                cursor = found.after
            is_done = await self._empty(store, bucket, now_ms) and is_done
        return is_done

    async def _empty(self, store: LogStore, bucket: DelayBucket, now_ms: int) -> bool:
        is_done = True
        while self._acts():
            dues, offsets, positions = bucket.take(GROUP_MAX, now_ms)
            if not len(dues):
                break
            entries = zip(dues.tolist(), offsets.tolist(), positions.tolist(), strict=True)
            results = await asyncio.gather(*(self._escape(store, bucket, *entry) for entry in entries))
            is_done = is_done and all(results)
        return is_done

    async def _escape(self, store: LogStore, bucket: DelayBucket, due_ms: int, offset: int, position: int) -> bool:
        """Send one message and note it; whether nothing is left to do for it here."""
        key = bucket.start_ms, offset
        if offset in bucket.recalled or self._journal.get(ESCAPES, key) is not None:
            return True
        record = store.reading.read_at(position)
        if isinstance(record, Absence):  # nothing is decided here: the next master may have it
            self._others.say(f"the delayed message at position {position} cannot be read here: {record.value}")
            return record is not Absence.NOT_YET
        if kind_of(RecordView(record)) != KIND_QUEUE:
            return True
        if not self._journal.room:
            self._others.say("the journal is full")
            return False
        (message,) = iter_stored(stored_message(RecordView(record), 0, offset, NO_HOST))
        properties = [each for each in message.properties if each[0] not in TIMED]
        if not await self._others.send(message, properties, position):
            return False
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(refused: Refused | None) -> None:
            if not kept.done():
                kept.set_result(refused is None)

        self._journal.add(ESCAPES, key, (due_ms, position), done)
        return await kept
