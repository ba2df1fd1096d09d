"""``lightmq tail``: print and follow messages from the log itself; ``lightmq query``: look messages up by their key.

`tail` reads through remoting, beside every subscriber, and moves no offset. An exact MQTT topic is one light queue; a
filter is read from the queues of the parent topics it covers and matched here. Messages of one broker are printed in
the order of its log. `query` prints the newest messages of a topic with a key, from the brokers' key indexes, the
newest first. A key is one of the sender's KEYS, or with ``--unique`` the id it gave the message; without a match the
exit status is 1.
With ``--read-from replica`` what there is to print is still asked of the master. A replica may know less than it, and
may have expired more: what no replica gives is asked of the master.

Invariants: messages are read as they are printed, so that a selection may be as large as the log: of each broker
``HELD_BYTES_MAX`` are held, and a message of each queue. ``_next`` contains, per queue, the offset after the last
message handed out (or examined and not selected), so that none is printed twice and no confirmed one is skipped.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from lightmq.cli.completing import TOPICS
from lightmq.cli.connections import Broker, ServerTarget, brokers, cluster_info, connector
from lightmq.cli.outcome import CommandFailed, CommandMisused, payload_fields
from lightmq.cli.times import time_ms
from remoting.batches.unpack import Unpacker, split_position
from remoting.client.admin import TIME_MAX_MS, found_messages, query_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.bodies.controller_body import MASTER_ID
from remoting.protocol.bodies.pull_body import (
    FROM_REPLICA_FIELD,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OK,
    VIEW,
    PulledRange,
    QueueBoundsReply,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.errors import CorruptRecord, LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView, check_record, iter_records
from remoting.protocol.records.stored_message import StoredMessage, offset_message_id
from remoting.protocol.records.topics import matches

PULL_BYTES = 1024 * 1024
HELD_BYTES_MAX = 32 * 1024 * 1024
"""What is read ahead of one broker, all its queues together; a larger message comes alone."""
WINDOW_MIN = 64
"""Messages examined per queue in the first step back; each further step is four times as long."""


@dataclass(frozen=True, slots=True)
class MessageSelection:
    """Which messages: those of an MQTT topic or filter, or all of a RocketMQ topic."""

    name: str
    is_parent: bool = False

    def wants(self, record: RecordView) -> bool:
        """Whether a record of the covered queues is selected."""
        if self.is_parent:
            return True
        topic = record.mqtt_topic
        return topic is not None and matches(self.name, topic)


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A message as a record of its own (one of a batch is unpacked), and where it stands in its queue."""

    queue_id: int
    offset: int
    record: RecordView


class ReplicaRanges:
    """The replicas of one group, asked one at a time; one that did not answer is not asked again."""

    def __init__(self, addresses: Sequence[str], dial: Callable[[str], BlockingConnection]) -> None:
        self._addresses = list(addresses)
        self._dial = dial
        self._connection: BlockingConnection | None = None

    def pull(self, body: bytes, start: int) -> PulledRange | None:
        """The answer to RANGE_PULL with records from `start` on; None where no replica has any."""
        while self._addresses:
            try:
                if self._connection is None:
                    self._connection = self._dial(self._addresses[0])
                command = Command(RequestCode.RANGE_PULL, fields=VIEW | {FROM_REPLICA_FIELD: "true"}, body=body)
                pulled = decode_range_pull_reply(checked(self._connection.request(command)).body)
            except LightMQError:
                self.close()
                del self._addresses[0]
            else:
                return pulled if pulled.status == STATUS_OK and pulled.next_offset > start else None
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def replica_ranges(target: ServerTarget) -> dict[str, ReplicaRanges]:
    """The replicas that serve readers, by group. Raises as `brokers`."""
    dial = connector(target)
    return {
        name: ReplicaRanges([at for number, at in sorted(data.broker_addrs.items()) if number != MASTER_ID], dial)
        for name, data in cluster_info(target, replicas=True).broker_addr_table.items()
    }


class QueueReader:
    """One selection on one broker."""

    def __init__(self, broker: Broker, selection: MessageSelection, replicas: ReplicaRanges | None = None) -> None:
        """`replicas`: asked for messages before the broker itself."""
        self._broker = broker
        self._replicas = replicas
        self._selection = selection
        self._next: dict[int, int] = {}
        self._known: dict[str, dict[str, int]] = {}
        self._unpacker = Unpacker()

    def exists(self) -> bool:
        """Whether the broker has a queue for the selection at all."""
        return bool(self._bounds(0))

    def newest(self, count: int) -> list[LogMessage]:
        """The last ``count`` selected messages, oldest first."""
        found: list[LogMessage] = []
        for queue_id, lowest, end in self._bounds(0):
            found += self._newest_of(queue_id, lowest, end, count)
            self._next[queue_id] = end
        found.sort(key=_place)
        return found[len(found) - min(count, len(found)) :]

    def since(self, from_ms: int) -> Iterator[LogMessage]:
        """Selected messages stored at or after a time, oldest first."""
        stretches = []
        for queue_id, lowest, end in self._bounds(0):
            stretches.append((queue_id, self._first_since(queue_id, lowest, end, from_ms), end))
            self._next[queue_id] = end
        return self._merged(stretches)

    def from_offset(self, offset: int) -> Iterator[LogMessage]:
        """Selected messages from ``offset`` of each queue to its present end."""
        stretches = []
        for queue_id, lowest, end in self._bounds(0):
            stretches.append((queue_id, max(offset, lowest), end))
            self._next[queue_id] = max(offset, end)
        return self._merged(stretches)

    def fresh(self, wait_ms: int) -> Iterator[LogMessage]:
        """What arrived since the last call; waits up to ``wait_ms`` for something."""
        stretches = []
        for queue_id, lowest, end in self._bounds(wait_ms):
            start = self._next.get(queue_id, lowest)  # a queue that is new since then is read from its beginning
            if start < end:
                stretches.append((queue_id, max(start, lowest), end))
            self._next[queue_id] = max(start, end)
        return self._merged(stretches)

    def _merged(self, stretches: list[tuple[int, int, int]]) -> Iterator[LogMessage]:
        """The selected messages of queues (id, first offset, end) in the order of the log, read as they are taken."""
        pull_bytes = min(PULL_BYTES, HELD_BYTES_MAX // max(1, len(stretches)))
        return heapq.merge(*(self._read(*stretch, pull_bytes) for stretch in stretches), key=_place)

    def _bounds(self, wait_ms: int) -> list[tuple[int, int, int]]:
        reply = self._ask_bounds(wait_ms)
        for queue in reply.queues:
            self._known.setdefault(queue.topic, {})[str(queue.queue)] = queue.max
        if reply.light is not None:
            return [(reply.light.id, reply.light.min, reply.light.max)]
        return [(queue.id, queue.min, queue.max) for queue in reply.queues]

    def _ask_bounds(self, wait_ms: int) -> QueueBoundsReply:
        name = self._selection.name
        request = QueueBoundsRequest(
            topics=[name] if self._selection.is_parent else [],
            filter=None if self._selection.is_parent else name,
            known=self._known if wait_ms else None,
            wait_ms=wait_ms,
        )
        reply = self._broker.ask_again(RequestCode.QUEUE_BOUNDS, encode_bounds_request(request))
        return decode_bounds_reply(reply.body)

    def _newest_of(self, queue_id: int, lowest: int, end: int, count: int) -> list[LogMessage]:
        found: list[LogMessage] = []
        window = max(WINDOW_MIN, count)
        upper = end
        while upper > lowest and len(found) < count:
            start = max(lowest, upper - window)
            found = [*deque(self._read(queue_id, start, upper), count - len(found)), *found]
            upper, window = start, window * 4
        return found

    def _first_since(self, queue_id: int, lowest: int, end: int, from_ms: int) -> int:
        """The first offset of a time, found by halves: the times of a queue do not fall."""
        return lowest + bisect_left(range(lowest, end), from_ms, key=lambda at: self._store_ms(queue_id, at, end))

    def _store_ms(self, queue_id: int, at: int, end: int) -> int:
        """When the first message at or behind an offset was stored."""
        body = encode_range_pull(queue_id, at, end, 1)
        pulled = decode_range_pull_reply(self._broker.ask_again(RequestCode.RANGE_PULL, body, VIEW).body)
        return next((record.store_ms for record in iter_records(pulled.blob)), TIME_MAX_MS)

    def _read(self, queue_id: int, start: int, end: int, pull_bytes: int = PULL_BYTES) -> Iterator[LogMessage]:
        while start < end:
            body = encode_range_pull(queue_id, start, end, pull_bytes)
            pulled = self._replicas.pull(body, start) if self._replicas is not None else None
            if pulled is None:
                pulled = decode_range_pull_reply(self._broker.ask_again(RequestCode.RANGE_PULL, body, VIEW).body)
            records = map(_checked, iter_records(pulled.blob))
            at = max(start, pulled.first_offset)
            try:
                for offset, record in self._unpacker.messages(records, queue_id, pulled.first_offset, end):
                    if self._selection.wants(record):
                        yield LogMessage(queue_id, offset, record)
                    at = offset + 1
            except CorruptRecord as error:
                raise CorruptRecord(
                    f"the message at offset {at} of queue {queue_id} is damaged: {error}; see lightmq store verify on "
                    f"the broker's machine, or go on behind it with --offset {at + 1}"
                ) from error
            if pulled.status == STATUS_NO_SUCH_QUEUE or pulled.next_offset <= start:
                return
            start = pulled.next_offset


def _checked(record: RecordView) -> RecordView:
    """The broker hands out ranges without reading their checksums."""
    check_record(record.raw, 0, None)
    return record


def _place(message: LogMessage) -> tuple[int, int]:
    """Order of the log: by record, in it by row."""
    return split_position(message.record.position)


WAIT_MS = 1_000
HERE = ServerTarget()


def tail(
    topic_filter: Annotated[
        str, TOPICS, Parameter(name=["--filter", "-t"], help="MQTT topic or filter; with --topic a RocketMQ topic.")
    ],
    *,
    last: Annotated[int, Parameter(name=["--last", "-n"], help="Begin with this many of the newest messages.")] = 10,
    offset: Annotated[int | None, Parameter(name=["--offset"], help="Begin at this queue offset instead.")] = None,
    since: Annotated[str, Parameter(help="Begin at this time instead: 10m, 2026-11-22T10:15, yesterday.")] = "",
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative=(), help="Keep running and print new messages.")
    ] = False,
    count: Annotated[int, Parameter(name=["--count"], help="Exit after this many messages; 0: no limit.")] = 0,
    topic: Annotated[bool, Parameter(name=["--topic"], negative=(), help="The name is a RocketMQ topic.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    read_from: Annotated[
        Literal["master", "replica"],
        Parameter(help="With replica, replicas give the messages where there are any that have them."),
    ] = "master",
    target: ServerTarget = HERE,
) -> None:
    """Print messages from the log."""
    from lightmq.cli.options import check_filter

    if not topic:
        check_filter(topic_filter)
    if last < 0 or count < 0 or (offset is not None and offset < 0):
        raise CommandMisused("--last, --count and --offset must not be negative")
    since_ms = time_ms(since) if since else None
    selection = MessageSelection(topic_filter, is_parent=topic)
    printer = Printer(limit=count, json_output=json_output)
    with brokers(target) as found, contextlib.ExitStack() as stack:
        replicas = replica_ranges(target) if read_from == "replica" else {}
        for each in replicas.values():
            stack.callback(each.close)
        readers = [QueueReader(broker, selection, replicas.get(broker.name)) for broker in found]
        if topic and not any(reader.exists() for reader in readers):
            raise CommandFailed(f"there is no topic {topic_filter}; see: lightmq topics")
        first = [_begin(reader, last, offset, since_ms) for reader in readers]
        labelled = [zip(repeat(broker), messages, strict=False) for broker, messages in zip(found, first, strict=True)]
        if offset is not None:
            printer.put(chain(*labelled))
        elif since_ms is not None:
            printer.put(heapq.merge(*labelled, key=_stored_ms))
        else:
            batches = sorted(chain(*labelled), key=_stored_ms)
            printer.put(batches[len(batches) - min(last, len(batches)) :])
        if not printer.printed:
            what = "is in" if topic else "matches"
            sys.stderr.write(f"no message {what} {topic_filter}{' yet' if follow else ''}\n")
        while follow and not printer.full:
            for broker, reader in zip(found, readers, strict=True):
                printer.put(zip(repeat(broker), reader.fresh(WAIT_MS // len(found)), strict=False))


def _begin(reader: QueueReader, last: int, offset: int | None, since_ms: int | None) -> Iterable[LogMessage]:
    """The messages to begin with: from an offset, else from a time, else the last ones."""
    if offset is not None:
        return reader.from_offset(offset)
    return reader.newest(last) if since_ms is None else reader.since(since_ms)


def _stored_ms(item: tuple[Broker, LogMessage]) -> int:
    return item[1].record.store_ms


class Printer:
    """Writes messages until its limit is reached; what a terminal shows is not held back."""

    def __init__(self, *, limit: int, json_output: bool) -> None:
        self._limit = limit
        self._json = json_output
        self._at_once = sys.stdout.isatty()
        self.printed = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is to be printed."""
        return bool(self._limit) and self.printed >= self._limit

    def put(self, messages: Iterable[tuple[Broker, LogMessage]]) -> None:
        """Print what the limit still allows, and flush it."""
        for broker, message in () if self.full else messages:
            sys.stdout.buffer.write(render(broker.name, message, json_output=self._json))
            self.printed += 1
            if self._at_once:
                sys.stdout.buffer.flush()
            if self.full:
                break
        sys.stdout.buffer.flush()


def render(broker: str, message: LogMessage, *, json_output: bool) -> bytes:
    """One line for one message."""
    record = message.record
    payload = bytes(record.body)
    name = shown_topic(record)
    if not json_output:
        return b"%d %s %s\n" % (message.offset, name.encode(), payload)
    fields = {
        "broker": broker,
        "topic": name,
        "queue": message.queue_id,
        "offset": message.offset,
        "position": record.position,
        "born_ms": record.born_ms,
        "stored_ms": record.store_ms,
    }
    return (json.dumps({**fields, **payload_fields(payload)}, ensure_ascii=False) + "\n").encode()


def shown_topic(record: RecordView) -> str:
    """The MQTT topic, or the RocketMQ topic of a message that was not published over MQTT."""
    return (record.mqtt_topic or record.topic).decode(errors="replace")


def query(
    topic: Annotated[
        str, TOPICS, Parameter(name=["--topic", "-t"], help="RocketMQ topic; of MQTT messages the parent topic.")
    ],
    key: Annotated[str, Parameter(name=["--key", "-k"], help="One of the message's keys.")],
    *,
    unique: Annotated[bool, Parameter(negative=(), help="The key is the unique id of a message.")] = False,
    count: Annotated[
        int, Parameter(name=["--count", "-n"], help="At most this many, newest first (64 per broker).")
    ] = 32,
    begin: Annotated[
        str, Parameter(name=["--since", "--begin"], help="Stored from this time on (2026-11-22T10:15, 10m, yesterday).")
    ] = "",
    end: Annotated[str, Parameter(name=["--until", "--end"], help="Stored up to this time.")] = "",
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Look up messages by topic and key."""
    begin_ms, end_ms = time_ms(begin) if begin else 0, time_ms(end) if end else TIME_MAX_MS
    if count < 1 or begin_ms > end_ms:
        raise CommandMisused("--count must be at least 1, and --since not behind --until")
    fields = query_fields(topic, key, count, begin_ms=begin_ms, end_ms=end_ms, unique=unique)
    found: list[tuple[str, StoredMessage]] = []
    with brokers(target) as asked:
        for broker in asked:
            answer = broker.connection.request(Command(RequestCode.QUERY_MESSAGE, fields=fields))
            found += [(broker.name, message) for message in found_messages(answer)]
    found.sort(key=lambda item: item[1].store_ms, reverse=True)
    for broker_name, message in found[:count]:
        sys.stdout.buffer.write(render_stored(broker_name, message, json_output=json_output))
    sys.stdout.buffer.flush()
    if not found:
        raise CommandFailed(f"topic {topic} has no message with the key {key} in that time")


def render_stored(broker: str, message: StoredMessage, *, json_output: bool) -> bytes:
    """One line for one message."""
    if not json_output:
        return b"%d-%d %s %s\n" % (message.queue_id, message.queue_offset, b" ".join(message.keys), message.body)
    fields: dict[str, Any] = {
        "broker": broker,
        "topic": message.topic.decode(errors="replace"),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "position": message.position,
        "id": offset_message_id(message.store_host, message.position),
        "keys": [key.decode(errors="replace") for key in message.keys],
        "born_ms": message.born_ms,
        "stored_ms": message.store_ms,
        "properties": {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in message.properties
        },
    }
    return (json.dumps({**fields, **payload_fields(message.body)}, ensure_ascii=False) + "\n").encode()
