"""The readers of a run: a subscriber with a session that stays, a follower of the log, and the last reading of it all.

The subscriber acknowledges and remembers what came. The follower reads what the master shows as it appears and keeps a
checksum per offset, so that what changes or vanishes later is found. The last reading takes every queue from its start.
Thread rule: a thread for the subscriber and one for the follower; results are looked at when they have stopped.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from lightmq.cli.link import Broker
from lightmq.cli.queue_reader import LogMessage, QueueReader, Selection
from remoting.client.blocking import BlockingConnection
from remoting.protocol.errors import LightMQError
from remoting.transport.failures import split_address
from tests.chaos.load import ANSWER_S, PAUSE_S, connected, master
from tests.processes.wire import subscribe

READ_TIMEOUT_MS = 5_000
FRESH_MS = 300


class Subscriber:
    """An MQTT session with one filter, QoS 1; what came, by topic."""

    def __init__(self, client_id: str, topic_filter: str, addresses: Callable[[], list[str]], seed: int) -> None:
        self.client_id = client_id
        self.messages: dict[str, list[bytes]] = {}
        self.count = 0
        self.connections = 0
        self.lost_sessions = 0
        self.failure = ""
        self.is_subscribed = threading.Event()
        self._filter = topic_filter
        self._addresses = addresses
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._session()
            except (OSError, EOFError) as error:
                self.failure = repr(error)
            self._stop.wait(PAUSE_S)

    def _session(self) -> None:
        host, port = split_address(self._chance.choice(self._addresses()))
        with contextlib.closing(connected(host, port, self.client_id, clean=False)) as link:
            self.connections += 1
            link.sendall(subscribe((self._filter, 1)))  # again at every connection, as careful devices do
            link.settimeout(ANSWER_S * 2)
            buffer, asked = bytearray(), False
            while not self._stop.is_set():
                try:
                    data = link.recv(262_144)
                except TimeoutError:
                    if asked:
                        raise  # not even an answer to our PINGREQ
                    link.sendall(b"\xc0\x00")
                    asked = True
                    continue
                if not data:
                    raise EOFError("the proxy closed the connection")
                asked = False
                buffer += data
                self._take(link, buffer)

    def _take(self, link: socket.socket, buffer: bytearray) -> None:
        at, answers = 0, []
        while True:
            found = split(buffer, at)
            if found is None:
                break
            first, begin, at = found
            kind = first >> 4
            if kind == 3:
                topic_end = begin + 2 + int.from_bytes(buffer[begin : begin + 2], "big")
                topic = bytes(buffer[begin + 2 : topic_end]).decode()
                answers.append(b"\x40\x02" + bytes(buffer[topic_end : topic_end + 2]))
                self.messages.setdefault(topic, []).append(bytes(buffer[topic_end + 2 : at]))
                self.count += 1
            elif kind == 9:
                self.is_subscribed.set()
        del buffer[:at]
        if answers:
            link.sendall(b"".join(answers))


def split(buffer: bytearray, at: int) -> tuple[int, int, int] | None:
    """First byte, begin and end of the body of the packet at a place; None when it is not whole yet."""
    length, shift, place = 0, 0, at + 1
    while place < len(buffer):
        byte = buffer[place]
        length |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return (buffer[at], place, place + length) if place + length <= len(buffer) else None
    return None


@dataclass
class Seen:
    """What was shown at the offsets of one queue: checksums from the first offset on."""

    first: int = 0
    checksums: array[int] = field(default_factory=lambda: array("L"))

    def table(self) -> dict[int, int]:
        """Offset -> checksum."""
        return dict(enumerate(self.checksums, self.first))


class Follower:
    """Reads topics of the group's master as they grow."""

    def __init__(self, topics: list[str], controllers: Callable[[], list[str]]) -> None:
        self.topics = topics
        self.seen: dict[str, Seen] = {}
        self.problems: list[str] = []
        self.messages = 0
        self.failure = ""
        self._controllers = controllers
        self._readers: dict[str, QueueReader] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with contextlib.closing(BlockingConnection.dial(master(self._controllers()), READ_TIMEOUT_MS)) as link:
                    while not self._stop.is_set():
                        for topic in self.topics:
                            for message in self._reader(topic, link).fresh(FRESH_MS):
                                self._see(topic, message)
            except (OSError, LightMQError) as error:
                self.failure = repr(error)
                self._readers.clear()  # what a reader has read and not handed over is read again
            self._stop.wait(PAUSE_S)

    def _reader(self, topic: str, link: BlockingConnection) -> QueueReader:
        broker = Broker("broker-a", link.address, link)
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = QueueReader(broker, Selection(topic, is_parent=True))
            for name, seen in self.seen.items():
                parent, _, queue_id = name.rpartition("/")
                if parent == topic:  # the positions stay, whoever is the master
                    reader._next[int(queue_id)] = seen.first + len(seen.checksums)
        return reader

    def _see(self, topic: str, message: LogMessage) -> None:
        seen = self.seen.get(queue_name(topic, message.queue_id))
        if seen is None:
            seen = self.seen[queue_name(topic, message.queue_id)] = Seen(message.offset)
        checksum, place = zlib.crc32(message.record.body), message.offset - seen.first
        if place == len(seen.checksums):
            seen.checksums.append(checksum)
            self.messages += 1
        elif place > len(seen.checksums):
            self.problems.append(
                f"{topic}/{message.queue_id} went from {seen.first + len(seen.checksums)} to {message.offset}"
            )
        elif seen.checksums[place] != checksum:
            self.problems.append(f"{topic}/{message.queue_id} offset {message.offset} changed while it was read")


def queue_name(topic: str, queue_id: int) -> str:
    """How judges call a queue."""
    return f"{topic}/{queue_id}"


@dataclass
class Final:
    """Everything the log holds in the end."""

    bodies: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)

    def all(self, topic: str) -> list[bytes]:
        """Every message of a topic."""
        return [body for (name, _), offsets in self.bodies.items() if name == topic for body in offsets.values()]

    def by_queue(self) -> dict[str, list[bytes]]:
        """Messages in the order of their offsets."""
        return {queue_name(*key): [offsets[at] for at in sorted(offsets)] for key, offsets in self.bodies.items()}

    def checksums(self) -> dict[str, dict[int, int]]:
        """Queue -> offset -> checksum."""
        return {
            queue_name(*key): {offset: zlib.crc32(body) for offset, body in offsets.items()}
            for key, offsets in self.bodies.items()
        }


def final_reading(topics: list[str], address: str) -> Final:
    """Read every queue of the topics from its beginning. Raises OSError, LightMQError."""
    final = Final()
    with BlockingConnection.dial(address, 60_000) as link:
        for topic in topics:
            reader = QueueReader(Broker("broker-a", address, link), Selection(topic, is_parent=True))
            for message in reader.from_offset(0):
                offsets = final.bodies.setdefault((topic, message.queue_id), {})
                offsets[message.offset] = bytes(message.record.body)
    return final
