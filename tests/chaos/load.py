"""The sources of a run: numbered messages at a steady rate, sent again until they are acknowledged, in order.

`MqttSource` publishes with QoS 1 on one connection; `ProducerSource` uses LightMQ's producer, which finds and follows
the master, and returns each message's offset. Both keep what is not acknowledged and send it again first, so that the
first reading of every message comes in order. Thread rule: a thread each; `stop` and the counters from any thread.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from remoting.client.admin import topic_fields
from remoting.client.batching import Message, ProducerSettings
from remoting.client.blocking import BlockingConnection, checked, cluster
from remoting.client.threads import Producer
from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.chaos.cluster import GROUP, PASSWORD, USER
from tests.chaos.ledger import Ledger, payload
from tests.processes.wire import packet, text

ANSWER_S = 2.0
"""A connection silent for this long with a request outstanding is dropped."""
TURN_S = 0.02
PAUSE_S = 0.1


class Source:
    """One source: a ledger, a rate, a thread."""

    window = 400
    """Messages handed over and not acknowledged."""

    def __init__(self, ledger: Ledger, rate: float, now: Callable[[], float]) -> None:
        self.ledger = ledger
        self.rate = rate
        self.now = now
        self.waiting: deque[int] = deque()
        self.connections = 0
        self.failure = ""
        self._due = 0.0
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._thread = threading.Thread(target=self._run, name=ledger.source, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def drain(self) -> None:
        """Send nothing new."""
        self._drain.set()

    @property
    def is_drained(self) -> bool:
        """Everything that was sent is acknowledged."""
        return self._drain.is_set() and not self.waiting

    def stop(self) -> None:
        """End, whatever is in flight."""
        self._stop.set()
        self._thread.join(30)

    def fresh(self) -> list[int]:
        """The numbers of new messages that are due now."""
        if self._drain.is_set():
            return []
        at = self.now()
        self._due = min(self._due + self.rate * (at - self._last), float(self.window))
        self._last = at
        count = min(int(self._due), self.window - len(self.waiting))
        if count <= 0:
            return []
        self._due -= count
        numbers = [self.ledger.send(at) for _ in range(count)]
        self.waiting.extend(numbers)
        return numbers

    def _run(self) -> None:
        self._last = self.now()
        while not self._stop.is_set():
            try:
                self.session()
            except (OSError, LightMQError, EOFError) as error:
                self.failure = repr(error)
            self._stop.wait(PAUSE_S)

    def session(self) -> None:
        """One connection from its beginning to its end."""
        raise NotImplementedError


class MqttSource(Source):
    """A publisher of MQTT 3.1.1 with a session that stays."""

    def __init__(
        self, ledger: Ledger, rate: float, now: Callable[[], float], addresses: Callable[[], list[str]], seed: int
    ) -> None:
        super().__init__(ledger, rate, now)
        self._addresses = addresses
        self._chance = random.Random(seed)

    def session(self) -> None:
        """CONNECT, then publish and take acknowledgements until the connection breaks."""
        host, port = split_address(self._chance.choice(self._addresses()))
        with contextlib.closing(connected(host, port, f"chaos-{self.ledger.source}", clean=False)) as link:
            self.connections += 1
            link.setblocking(True)
            link.settimeout(ANSWER_S)
            self._send(link, list(self.waiting), again=True)
            buffer, heard = b"", time.monotonic()
            while not self._stop.is_set():
                self._send(link, self.fresh(), again=False)
                readable, _, _ = select.select([link], [], [], TURN_S)
                if readable:
                    data = link.recv(65_536)
                    if not data:
                        raise EOFError("the proxy closed the connection")
                    buffer, heard = self._take(buffer + data), time.monotonic()
                elif not self.waiting:
                    heard = time.monotonic()
                elif time.monotonic() - heard > ANSWER_S:
                    raise TimeoutError("no acknowledgement")

    def _send(self, link: socket.socket, numbers: list[int], *, again: bool) -> None:
        first, topic = 0x3A if again else 0x32, text(self.ledger.topic)
        packets = []
        for number in numbers:
            body = topic + struct.pack(">H", number % 65_535 + 1) + payload(self.ledger.source, number)
            packets.append(packet(first, body))
        if packets:
            link.sendall(b"".join(packets))

    def _take(self, buffer: bytes) -> bytes:
        at = self.now()
        while len(buffer) >= 4:
            assert buffer[0] == 0x40, f"packet {buffer[0]:#x} to a publisher"
            (packet_id,) = struct.unpack_from(">H", buffer, 2)
            buffer = buffer[4:]
            number = next((each for each in self.waiting if each % 65_535 + 1 == packet_id), None)
            if number is not None:
                self.ledger.acknowledge(number, at)
                self.waiting.remove(number)
        return buffer


class ProducerSource(Source):
    """LightMQ's producer for threads, on one queue of a topic: it follows the master of the group by itself.

    One request at a time, with its answer before the next is handed over: behind one that fails another may be stored.
    """

    batch = 100
    queues = 4

    def __init__(
        self,
        ledger: Ledger,
        rate: float,
        now: Callable[[], float],
        controllers: Callable[[], list[str]],
        queue: int,
    ) -> None:
        super().__init__(ledger, rate, now)
        self._controllers = controllers
        self._queue = queue
        self._created = False

    def session(self) -> None:
        """Create the topic, then send for as long as the run lasts; what fails is sent again first."""
        if not self._created:
            self._create()
        settings = ProducerSettings(linger_ms=60_000, batch_count_max=self.batch)
        with Producer(controllers=self._controllers(), broker_name=GROUP, settings=settings) as producer:
            while not self._stop.is_set():
                self.fresh()
                if not self.waiting:
                    self._stop.wait(TURN_S)
                    continue
                try:
                    self._store(producer, list(self.waiting)[: self.batch])
                except LightMQError as error:
                    self.failure = repr(error)
                    self._stop.wait(PAUSE_S)
                self.connections = producer.connections

    def _create(self) -> None:
        command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields(self.ledger.topic, self.queues))
        with BlockingConnection.dial(master(self._controllers()), int(ANSWER_S * 1000)) as link:
            checked(link.request(command))
        self._created = True

    def _store(self, producer: Producer, numbers: list[int]) -> None:
        """Send messages, the first by itself and the others as one request, and wait for their offsets.

        With the first one the producer reads the route again if it must; that alone could fail, and the others would be
        stored after it.
        """
        for together in (numbers[:1], numbers[1:]):
            self._store_together(producer, together)

    def _store_together(self, producer: Producer, numbers: list[int]) -> None:
        topic, source = self.ledger.topic, self.ledger.source
        sent = [
            producer.send(Message(topic=topic, body=payload(source, number), queue=self._queue)) for number in numbers
        ]
        producer.flush()
        at = self.now()
        for number, future in zip(numbers, sent, strict=True):
            place = future.result()
            self.ledger.acknowledge(number, at)
            self.ledger.places[number] = (place.queue, place.offset)
            assert self.waiting.popleft() == number


def master(controllers: list[str], group: str = GROUP) -> str:
    """The address of the group's master, from the first name server that has one. Raises OSError."""
    failures = []
    for address in random.sample(controllers, len(controllers)):  # one that is cut off gives old routes for ever
        try:
            with BlockingConnection.dial(address, 1_000) as link:
                data = cluster(link).broker_addr_table.get(group)
        except LightMQError as error:
            failures.append(str(error))
            continue
        found = data.master() if data is not None else None
        if found is not None:
            return found
        failures.append(f"{address} knows no master")
    raise OSError("; ".join(failures))


def connected(host: str, port: int, client_id: str, *, clean: bool) -> socket.socket:
    """A socket after CONNECT and CONNACK. Raises OSError, EOFError."""
    link = socket.create_connection((host, port), ANSWER_S)
    try:
        flags = 0xC0 | (2 if clean else 0)
        body = text("MQTT") + bytes([4, flags]) + struct.pack(">H", 30) + text(client_id) + text(USER) + text(PASSWORD)
        link.sendall(packet(0x10, body))
        answer = b""
        while len(answer) < 4:
            data = link.recv(4 - len(answer))
            if not data:
                raise EOFError("closed before CONNACK")
            answer += data
        if answer[0] != 0x20 or answer[3] != 0:
            raise OSError(f"CONNACK {answer.hex()}")
    except BaseException:
        link.close()
        raise
    return link
