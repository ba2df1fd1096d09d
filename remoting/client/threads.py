"""Blocking clients for threads: administration, one queue of messages, and the batching producer.

    Admin, Consumer   the calls of the asyncio clients
    Producer          `send` returns a `concurrent.futures.Future` of the message's place, and waits only while
                      `memory_bytes_max` is taken (`when_full` = `refuse`: raises)

A background thread keeps the connection. With the addresses of controllers it follows the master of a broker group, and
requests that a lost master did not answer are sent to the next one. Messages of one thread keep their order per queue;
after one whose future fails later ones may be stored, so a thread that needs strict order waits for each.
Invariant: every future completes, at the latest in `close`. Thread rule: `Admin` and `Producer` from any thread but the
producer's own; `Consumer` from any, one call at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from remoting.client.admin import TIME_MAX_MS, AsyncAdmin
from remoting.client.batching import OVERHEAD_BYTES, AsyncProducer, Message, ProducerSettings, Sent
from remoting.client.consumer import (
    PULL_COUNT_MAX,
    PULL_WAIT_MS,
    READ_BYTES_MAX,
    READ_COUNT_MAX,
    AsyncConsumer,
    PullResult,
)
from remoting.client.tls import ClientTls
from remoting.client.uplink import BackgroundConnection, Closing, Endpoint
from remoting.protocol.bodies.controller_body import PERM_READ, PERM_WRITE, ClusterInfo, TopicRoute
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.stored_message import StoredMessage
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost
from remoting.transport.signature import Signer


class Admin(Closing):
    """Administration for threads: the calls of `AsyncAdmin`, blocking."""

    def __init__(
        self,
        address: str = "",
        *,
        controllers: Sequence[str] = (),
        broker_name: str = "",
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """The broker is named as for a `Producer`."""
        endpoint = Endpoint(address, controllers, broker_name, signer, tls)
        self._background = BackgroundConnection(endpoint, name="lightmq-admin")
        self._admin = AsyncAdmin(self._background.uplink.connection)

    def cluster(self) -> ClusterInfo:
        """Return every broker group known to the name server."""
        return self._background.run(self._admin.cluster())

    def topic_names(self) -> list[str]:
        """Return the names of all topics known to the name server."""
        return self._background.run(self._admin.topic_names())

    def route(self, topic: str) -> TopicRoute:
        """Return where a topic's queues are."""
        return self._background.run(self._admin.route(topic))

    def topics(self) -> dict[str, Any]:
        """Return the broker's topics with their queues and counts, as the JSON object of its answer."""
        return self._background.run(self._admin.topics())

    def status(self) -> dict[str, Any]:
        """Return the broker's status, as the JSON object of its answer."""
        return self._background.run(self._admin.status())

    def create_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic on the broker, or change its queue count, permission and attributes."""
        self._background.run(self._admin.create_topic(topic, queue_count, perm=perm, attributes=attributes))

    def topic_config(self, topic: str) -> dict[str, Any]:
        """Return a topic's configuration, as the JSON object of the answer; `Refused` (17) for no such topic."""
        return self._background.run(self._admin.topic_config(topic))

    def query(
        self, topic: str, key: str, *, count: int = 32, begin_ms: int = 0, end_ms: int = TIME_MAX_MS
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic with a key, between two store times."""
        return self._background.run(self._admin.query(topic, key, count=count, begin_ms=begin_ms, end_ms=end_ms))


class Consumer(Closing):
    """A consumer group's access to one queue, for threads: the calls of `AsyncConsumer`, blocking."""

    def __init__(
        self,
        address: str = "",
        *,
        group: str,
        topic: str,
        queue: int,
        controllers: Sequence[str] = (),
        broker_name: str = "",
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """The broker is named as for a `Producer`."""
        endpoint = Endpoint(address, controllers, broker_name, signer, tls)
        self._background = BackgroundConnection(endpoint, name="lightmq-consumer")
        self._consumer = AsyncConsumer(self._background.uplink.connection, group, topic, queue)

    def pull(
        self, offset: int, count_max: int = PULL_COUNT_MAX, wait_ms: int = PULL_WAIT_MS, tags: str = "*"
    ) -> PullResult:
        """Read from `offset`, waiting up to `wait_ms` at the end; `Refused` when topic or queue do not exist."""
        return self._background.run(self._consumer.pull(offset, count_max, wait_ms, tags))

    def read(self, offset: int, count_max: int = READ_COUNT_MAX, bytes_max: int = READ_BYTES_MAX) -> PullResult:
        """Read from `offset` without waiting; batches are unpacked here."""
        return self._background.run(self._consumer.read(offset, count_max, bytes_max))

    def committed(self) -> int | None:
        """Return the group's offset in the queue, None when it has none."""
        return self._background.run(self._consumer.committed())

    def commit(self, offset: int) -> None:
        """Store the group's offset: the next message it wants."""
        self._background.run(self._consumer.commit(offset))

    def max_offset(self) -> int:
        """Return the offset of the next message to be stored."""
        return self._background.run(self._consumer.max_offset())

    def min_offset(self) -> int:
        """Return the offset of the oldest message that is still stored."""
        return self._background.run(self._consumer.min_offset())

    def offset_at(self, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time (milliseconds since 1970)."""
        return self._background.run(self._consumer.offset_at(timestamp_ms))


_UNBOUNDED = 1 << 62


class Producer(Closing):
    """Sends messages to a broker; made by its constructor, which does not wait for the connection."""

    def __init__(
        self,
        address: str = "",
        settings: ProducerSettings | None = None,
        *,
        controllers: Sequence[str] = (),
        broker_name: str = "",
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """`address` is a broker's `host:port`. Or `controllers` are the name servers' addresses, and `broker_name` is
        the group whose master is followed; without a name the first group that has one."""
        endpoint = Endpoint(address, controllers, broker_name, signer, tls)
        self._settings = settings or ProducerSettings()
        self.connections = 0
        """Connections made so far."""
        self._room = threading.Condition()
        self._waiting_bytes = 0
        self._wanting = 0
        self._handed: deque[tuple[Message, Future[Sent], int]] = deque()
        self._is_closed = False
        self._background = BackgroundConnection(endpoint, name="lightmq-producer")
        self._background.run(self._begin())

    def send(self, message: Message) -> Future[Sent]:
        """Accept a message; the future gets its place, or the error."""
        size = OVERHEAD_BYTES + len(message.body)
        future: Future[Sent] = Future()
        with self._room:
            while self._waiting_bytes and self._waiting_bytes + size > self._settings.memory_bytes_max:
                self._check_open()
                if self._settings.when_full == "refuse":
                    raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._waiting_bytes} bytes are already waiting")
                self._wanting += 1
                self._background.call_soon(self._press)
                self._room.wait()
                self._wanting -= 1
            self._check_open()
            self._waiting_bytes += size
            wakes = not self._handed
            self._handed.append((message, future, size))
        if wakes:
            self._background.call_soon(self._taken.set)
        return future

    def flush(self) -> None:
        """Wait until every message accepted so far is stored or has failed."""
        self._background.run(self._flush())

    def close(self) -> None:
        """Accept no more messages, wait for those accepted, end the thread."""
        with self._room:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()
        self.flush()
        self._background.run(self._end())
        self._background.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the producer is closed")

    def _press(self) -> None:
        """Send all batches, because a thread waits for room."""
        self._producer.press()

    async def _begin(self) -> None:
        self._taken, self._draining = asyncio.Event(), asyncio.Lock()
        uplink = self._background.uplink
        uplink.line.on_up(self._came_up)
        # Waiting bytes are counted on this side, where threads can wait for room.
        self._producer = AsyncProducer(uplink.connection, replace(self._settings, memory_bytes_max=_UNBOUNDED))
        self._pump_task = asyncio.create_task(self._pump())

    async def _end(self) -> None:
        self._pump_task.cancel()
        await asyncio.gather(self._pump_task, return_exceptions=True)
        await self._producer.close()

    def _came_up(self, _connection: Connection) -> None:
        self.connections += 1

    async def _pump(self) -> None:
        while True:
            await self._taken.wait()
            self._taken.clear()
            await self._drain()

    async def _drain(self) -> None:
        """Pass the threads' messages to the producer in order; only one task at a time does so."""
        async with self._draining:
            while True:
                with self._room:
                    if not self._handed:
                        return
                    handed, self._handed = self._handed, deque()
                for message, future, size in handed:
                    await self._hand_on(message, future, size)
                if self._wanting:
                    # A thread began to wait before these had reached the producer.
                    self._press()

    async def _hand_on(self, message: Message, future: Future[Sent], size: int) -> None:
        try:
            place = await self._producer.send(message)
        except Exception as error:  # noqa: BLE001 - an error belongs to its message and does not stop the next ones
            self._finish(future, size, error)
        else:
            place.add_done_callback(lambda done: self._placed(done, future, size))

    async def _flush(self) -> None:
        await self._drain()
        await self._producer.flush()

    def _placed(self, place: asyncio.Future[Sent], future: Future[Sent], size: int) -> None:
        error = place.exception()
        self._finish(future, size, error if error is not None else place.result())

    def _finish(self, future: Future[Sent], size: int, outcome: Sent | BaseException) -> None:
        with self._room:
            self._waiting_bytes -= size
            self._room.notify_all()
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
