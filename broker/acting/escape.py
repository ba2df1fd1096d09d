"""Delivers delayed messages that are due to another group's master while a replica stands in (RocketMQ's escape).

    confirmed messages that wait -> those due now -> a master of another group, by the route -> journal -> own master

Messages of RocketMQ's producers only; what is not due, what MQTT's clients delayed, and what no other group takes waits
for this group's master. A message is sent without its delay, with its properties, and `ESCAPED_FROM`: group and log
position. That it was sent is written to the journal after the other master has acknowledged it, and the next master of
this group passes it over (`broker.delayed.merging`).

Invariant: nothing goes to this group, or to a broker that is not writable; nothing is noted that was not acknowledged.
A crash between acknowledgement and journal, or an answer that is lost, delivers a message twice. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.acting.journal import ActingJournal
from broker.acting.kinds import ESCAPES
from broker.delayed.buckets import DelayBucket, DelayBuckets
from broker.store.errors import StoreError
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.delay import TIMED
from remoting.protocol.records.image import KIND_QUEUE, kind_of
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.rocketmq_form import NO_HOST, stored_message
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore

PAUSE_S, RETRY_S = 0.2, 1.0
GROUP_MAX = 64
"""Messages on their way at the same time."""
SCAN_MAX = 16_384
TIMEOUT_MS = 3_000
ESCAPED_FROM = b"ESCAPED_FROM"
PRODUCER_GROUP = "lightmq-escape"
MASTER_ID, WRITABLE = 0, 2

Target = tuple[str, int]
"""(address, number of queues)."""


class EscapeBridge:
    """The way out of a group that has no master."""

    def __init__(
        self,
        config: BrokerConfig,
        journal: ActingJournal,
        controllers: Controllers,
        *,
        store: Callable[[], LogStore | None],
        acts: Callable[[], bool],
        now_ms: Callable[[], int],
        dial: Dial,
        log: Any,
    ) -> None:
        """`store`: the open log, None between two roles. `acts`: whether this broker stands in. `now_ms`: the wall
        clock."""
        self._config, self._journal, self._controllers = config, journal, controllers
        self._store, self._acts, self._now_ms = store, acts, now_ms
        self._dial, self._log = dial, log
        self._task: asyncio.Task[None] | None = None
        self._connections: dict[str, Connection] = {}
        self._said = ""

    def start(self) -> None:
        """Begin to look for what is due."""
        self._task = asyncio.get_running_loop().create_task(self._run())

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
                except (LightMQError, StoreError, OSError) as error:
                    is_done = False
                    self._say(str(error))
                finally:
                    await self._hang_up()
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
        if record is None or kind_of(RecordView(record)) != KIND_QUEUE:
            return True
        if self._journal.is_full:
            self._say("the journal is full")
            return False
        (message,) = iter_stored(stored_message(RecordView(record), 0, offset, NO_HOST))
        if not await self._send(message, position):
            return False
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(refused: Refused | None) -> None:
            if not kept.done():
                kept.set_result(refused is None)

        self._journal.add(ESCAPES, key, (due_ms, position), done)
        return await kept

    async def _send(self, message: StoredMessage, position: int) -> bool:
        """Send a message to one group that takes it; whether one has acknowledged it."""
        topic = message.topic.decode()
        targets = await self._targets(topic)
        if not targets:
            self._say(f"no other group takes messages of the topic {topic}")
        first = position % len(targets) if targets else 0
        for address, queues in targets[first:] + targets[:first]:
            try:
                connection = self._connections.get(address)
                if connection is None:
                    connection = self._connections[address] = await self._dial(address)
                checked(await connection.request(self._sending(message, position, queues), TIMEOUT_MS))
            except (LightMQError, OSError) as error:
                self._connections.pop(address, None)
                self._say(str(error))
            else:
                return True
        return False

    def _sending(self, message: StoredMessage, position: int, queues: int) -> Command:
        origin = f"{self._config.broker_name}/{position}".encode()
        properties = [(key, value) for key, value in message.properties if key not in TIMED and key != ESCAPED_FROM]
        text = encode_properties([*properties, (ESCAPED_FROM, origin)])
        fields = {
            "a": PRODUCER_GROUP, "b": message.topic.decode(), "c": "TBW102", "d": str(queues),
            "e": str(position % queues), "f": str(message.sys_flag), "g": str(message.born_ms), "h": str(message.flag),
            "i": text.decode("utf-8", "replace"), "j": str(message.reconsume_times), "m": "false",
        }  # fmt: skip
        return Command(Code.SEND_MESSAGE_V2, fields=fields, body=message.body)

    async def _targets(self, topic: str) -> list[Target]:
        """The masters of other groups that take messages of a topic, as the first name server says that knows one."""
        found: asyncio.Future[list[Target]] = asyncio.get_running_loop().create_future()
        asked = answered = 0

        def question() -> Command:
            nonlocal asked
            asked += 1
            return Command(Code.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})

        def answer(_address: str, reply: Command | None) -> None:
            nonlocal answered
            answered += 1
            targets = self._in_route(reply) if reply is not None and reply.code == 0 else []
            if not found.done() and (targets or answered >= asked):
                found.set_result(targets)

        self._controllers.call_all(question, answer)
        if not asked:
            return []
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(found, self._config.replication.request_timeout_ms / 1_000)
        return []

    def _in_route(self, reply: Command) -> list[Target]:
        try:
            route = decode_body(reply.body, TopicRoute)
        except LightMQError:
            return []
        masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
        return [
            (address, each.write_queue_nums)
            for each in route.queue_datas
            if each.broker_name != self._config.broker_name and each.perm & WRITABLE and each.write_queue_nums
            if (address := masters.get(each.broker_name))
        ]

    async def _hang_up(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            with contextlib.suppress(LightMQError, OSError):
                await connection.close()

    def _say(self, why: str) -> None:
        if why != self._said:
            self._said = why
            self._log.warning("not_escaped", reason=why)
