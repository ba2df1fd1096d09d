"""The readers of a run: a subscriber with a session that stays, followers of the log, and the last reading of it all.

The subscriber acknowledges and remembers what came. A follower at each broker reads what that one shows while it takes
itself for the master, two at a time where one is a zombie; together they keep a checksum per offset, so that what
changes or vanishes later is found. The last reading takes every queue from its start.
Thread rule: a thread for the subscriber and one for each follower; results are looked at when they have stopped.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lightmq.cli.messages.tail import LogMessage, MessageSelection, QueueReader
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.addresses import split_address
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.commands import Command
from tests.chaos.load import ANSWER_S, PAUSE_S, connected
from tests.processes.wire import subscribe

READ_TIMEOUT_MS = 5_000
FRESH_MS = 300


class Subscriber:
    """An MQTT session with one filter, QoS 1, and its messages by topic."""

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
    """First byte, begin and end of the body of the packet at a position; None when it is incomplete."""
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

    bodies: dict[int, bytes] = field(default_factory=dict)
    """Where the log is cleaned: the bodies of messages that can no longer be read at the end."""

    def table(self) -> dict[int, int]:
        """Offset -> checksum."""
        return dict(enumerate(self.checksums, self.first))

    def end(self) -> int:
        """The offset after the last one shown."""
        return self.first + len(self.checksums)


@dataclass
class Sight:
    """What all brokers of the group showed, by queue; protected by the lock."""

    keeps_bodies: bool = False
    seen: dict[str, Seen] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, broker: str, name: str, offset: int, body: bytes) -> None:
        """A broker shows this message at this offset of a queue."""
        checksum = zlib.crc32(body)
        with self.lock:
            seen = self.seen.get(name)
            if seen is None:
                seen = self.seen[name] = Seen(offset)
            place = offset - seen.first
            if place == len(seen.checksums):
                seen.checksums.append(checksum)
                if self.keeps_bodies:
                    seen.bodies[offset] = body
            elif place > len(seen.checksums):
                self.problems.append(f"{name} went from {seen.end()} to {offset} at {broker}")
            elif place >= 0 and seen.checksums[place] != checksum:
                self.problems.append(f"{name} offset {offset} changed while it was read, at {broker}")

    def ends(self, topic: str) -> dict[int, int]:
        """Queue -> the offset after the last one shown."""
        with self.lock:
            split_names = [(name.rpartition("/"), seen) for name, seen in self.seen.items()]
        return {int(queue): seen.end() for (parent, _, queue), seen in split_names if parent == topic}


class Follower:
    """Reads topics of one broker as they grow, while it serves as the master."""

    def __init__(self, topics: list[str], name: str, address: str, sight: Sight) -> None:
        self.topics = topics
        self.failure = ""
        self._name, self._address, self._sight = name, address, sight
        self._readers: dict[str, QueueReader] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"follower-{name}", daemon=True)

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
                with contextlib.closing(BlockingConnection.dial(self._address, READ_TIMEOUT_MS)) as link:
                    while not self._stop.is_set():
                        for topic in self.topics:
                            for message in self._reader(topic, link).fresh(FRESH_MS):
                                self._see(topic, message)
            except (OSError, LightMQError) as error:
                self.failure = repr(error)
                self._readers.clear()  # what a reader has read and not returned is read again
            self._stop.wait(PAUSE_S)

    def _reader(self, topic: str, link: BlockingConnection) -> QueueReader:
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = QueueReader(OneBroker(link), MessageSelection(topic, is_parent=True))
            reader._next.update(self._sight.ends(topic))  # the positions stay, whichever broker is the master
        return reader

    def _see(self, topic: str, message: LogMessage) -> None:
        self._sight.see(self._name, queue_name(topic, message.queue_id), message.offset, bytes(message.record.body))


class OneBroker:
    """The part a reader sends its requests to: this broker and no other, so that the answers are its own."""

    def __init__(self, link: BlockingConnection) -> None:
        self._link = link

    def ask_again(self, code: int, body: bytes, fields: object = None) -> Command:
        """The answer. Raises Refused, and what a lost connection raises."""
        return checked(self._link.request(Command(code, body=body)))


def queue_name(topic: str, queue_id: int) -> str:
    """The name of a queue for the judges."""
    return f"{topic}/{queue_id}"


@dataclass
class Final:
    """The content of the log at the end."""

    bodies: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)
    """(topic, id of the queue) -> offset -> body."""
    ids: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, queue number as in the acknowledgements of producers) -> id of the queue."""

    def placed(self) -> dict[tuple[str, int], dict[int, bytes]]:
        """Bodies by (topic, number of its queue)."""
        return {(topic, number): self.bodies.get((topic, found), {}) for (topic, number), found in self.ids.items()}

    def complete(self, seen: Mapping[str, Seen]) -> None:
        """Prepend what was seen before the log was cleaned."""
        for name, found in seen.items():
            parent, _, queue = name.rpartition("/")
            bodies = self.bodies.setdefault((parent, int(queue)), {})
            lowest = min(bodies, default=found.end())
            bodies.update({offset: body for offset, body in found.bodies.items() if offset < lowest})

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
            reader = QueueReader(OneBroker(link), MessageSelection(topic, is_parent=True))
            for message in reader.from_offset(0):
                offsets = final.bodies.setdefault((topic, message.queue_id), {})
                offsets[message.offset] = bytes(message.record.body)
            final.ids |= {(topic, queue.queue): queue.id for queue in reader._ask_bounds(0).queues}
    return final
