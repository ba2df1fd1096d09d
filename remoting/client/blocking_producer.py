"""The batching producer for threads: one background thread with a loop, any number of threads that send.

It is given the address of a broker, or those of the controllers: then it is with the master of a broker group, whoever
that is, and what a lost master did not answer is sent to the next one.

`send` hands a message over and returns at once with a `concurrent.futures.Future` of its place, or waits while
`memory_bytes_max` is taken (`when_full` = `refuse`: raises). Messages of one thread keep their order per queue; behind
one whose future fails others may be stored, so who sends it again in order waits for each.
Invariant: every future ends, at the latest with `close`. Thread rule: every method may be called from any thread but
the producer's own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from remoting.client.batching import AsyncProducer, ProducerSettings
from remoting.client.endpoint import BackgroundConnection, Closing, Endpoint
from remoting.client.message import OVERHEAD_BYTES, Message, Sent
from remoting.client.tls import ClientTls
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost
from remoting.transport.signature import Signer

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
        """`address` is a broker's `host:port`. Or `controllers` are those of the name servers, and `broker_name` is the
        group whose master is followed; without a name the first group that has one."""
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
        """Hand a message over; the future has its place, or why it may not be stored."""
        size = OVERHEAD_BYTES + len(message.body)
        future: Future[Sent] = Future()
        with self._room:
            while self._waiting_bytes and self._waiting_bytes + size > self._settings.memory_bytes_max:
                self._check_open()
                if self._settings.when_full == "refuse":
                    raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._waiting_bytes} bytes wait to be stored already")
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
        """Wait until everything handed over so far has its place or its reason."""
        self._background.run(self._flush())

    def close(self) -> None:
        """Take no more, wait for what was handed over, end the thread."""
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
        """Room is wanted: what gathers leaves."""
        self._producer.press()

    async def _begin(self) -> None:
        self._taken, self._draining = asyncio.Event(), asyncio.Lock()
        uplink = self._background.uplink
        uplink.line.on_up(self._came_up)
        # This side counts what waits, where the threads can wait for it.
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
        """Give the producer what the threads handed over, in their order: one at a time does it."""
        async with self._draining:
            while True:
                with self._room:
                    if not self._handed:
                        return
                    handed, self._handed = self._handed, deque()
                for message, future, size in handed:
                    await self._hand_on(message, future, size)
                if self._wanting:
                    # A thread began to wait while these were still on their way to the producer.
                    self._press()

    async def _hand_on(self, message: Message, future: Future[Sent], size: int) -> None:
        try:
            place = await self._producer.send(message)
        except Exception as error:  # noqa: BLE001 - whatever a message raises is its own, the next ones go on
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
