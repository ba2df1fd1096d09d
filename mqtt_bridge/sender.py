"""The outbound direction: reads the log, publishes to the peer, and stores how far the peer has acknowledged.

The log is read only while the peer is there; while it is away the log keeps everything and the offset is where to go
on. A message is settled by the peer's PUBACK or PUBCOMP (QoS 0: when the socket has it). A refusal that may pass ends
the connection, so that the message is offered again after the pause, at most `refusals_max` times; one that will not
pass drops the message, counted and logged. The connection begins clean: the peer remembers no packet ids of an earlier
one, which could make it take a new QoS 2 message for an old one.

`Outbox` knows what has been sent and up to where the peer has everything. A cursor for each parent queue: `position`
is the next offset to read, `low` the lowest that is not settled. A record may go out in several copies (to several
topics of the peer); it is settled with the last of them. Copies are known by the packet id the MQTT library gave them.
When the connection ends, everything unsettled is read again from `low`. Invariant: `low` never passes a record of which
a copy is not settled; at most `window` copies are in flight. The window of `remoting.client.in_flight` does not fit
here: nothing is gathered or kept in memory, and the peer acknowledges copies in any order.

`LogReader` knows where to begin, what is new, and the offsets of what was settled. They are those of a consumer group
(`bridge-` and the connection's name) in the parent queues. A rule that was ever begun has a mark beside them, the
offset 1 in a light queue named after the rule: by it a queue without an offset is known to be new (and is read from its
beginning) or to be old to a new rule (and is read from its end).
Invariant: the stored offset never passes an unsettled message; once `prepare` returned, nothing published later under a
rule is passed over, whether or not the peer is there; `GroupOffset.store` returns when the offset is on the broker's
disk. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from paho.mqtt.packettypes import PacketTypes

from mqtt_bridge.config import OUT, ConnectionConfig, RuleConfig
from mqtt_bridge.message import (
    EXPIRED,
    REASONS,
    BridgeMetrics,
    MessageCounts,
    OutgoingCopy,
    OutMapping,
    outgoing,
    place_of,
    wrong_topic,
)
from mqtt_bridge.paho_client import FAILURE, code_in_words
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_SMALL,
    PulledRange,
    QueueBounds,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import light_queue_name
from remoting.protocol.records.record import RecordView, check_record, iter_records
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked
from runtime.clock import Clock
from runtime.logs import get_logger

Key = tuple[str, int]
"""(parent topic, number of the queue in it)."""


@dataclass(slots=True, eq=False)
class Cursor:
    """One parent queue."""

    queue_id: int
    position: int
    committed: int | None
    unsettled: dict[int, int] = field(default_factory=dict)
    """Offset -> copies that are not settled, in order of the offsets."""

    @property
    def low(self) -> int:
        """The lowest offset that is not settled."""
        return next(iter(self.unsettled), self.position)


class Outbox:
    """The cursors of one connection and the copies in flight."""

    def __init__(self, window: int) -> None:
        self.cursors: dict[Key, Cursor] = {}
        self._window = window
        self._limit = window
        self._flying: dict[int, tuple[Cursor, int]] = {}

    @property
    def in_flight(self) -> int:
        """Copies sent and not settled."""
        return len(self._flying)

    @property
    def free(self) -> int:
        """Copies that may be sent now."""
        return max(0, self._limit - len(self._flying))

    def limit(self, receive_maximum: int) -> None:
        """The peer takes no more than this at a time on the present connection."""
        self._limit = min(self._window, receive_maximum)

    def track(self, cursor: Cursor, offset: int, copies: int) -> None:
        """A record of which `copies` copies are about to be sent; it is the highest read so far."""
        assert offset >= cursor.position, (offset, cursor.position)
        cursor.unsettled[offset] = copies
        cursor.position = offset + 1

    def passed(self, cursor: Cursor, position: int) -> None:
        """Everything below `position` was read."""
        cursor.position = max(cursor.position, position)

    def sent(self, packet_id: int, cursor: Cursor, offset: int) -> None:
        """A copy of a tracked record was sent."""
        assert packet_id not in self._flying, packet_id
        self._flying[packet_id] = (cursor, offset)

    def place(self, packet_id: int) -> tuple[Cursor, int] | None:
        """The record of a copy in flight."""
        return self._flying.get(packet_id)

    def settled(self, packet_id: int) -> bool:
        """The peer has the copy (or will never take it); False for a packet id that is not in flight."""
        flying = self._flying.pop(packet_id, None)
        if flying is None:
            return False
        cursor, offset = flying
        cursor.unsettled[offset] -= 1
        if not cursor.unsettled[offset]:
            del cursor.unsettled[offset]
        return True

    def rewind(self) -> None:
        """The connection ended: everything that is not settled is read again."""
        self._flying.clear()
        self._limit = self._window
        for cursor in self.cursors.values():
            cursor.position = cursor.low
            cursor.unsettled.clear()

    def due(self) -> list[tuple[Key, int]]:
        """(queue, offset) of every queue whose committed offset is behind."""
        return [(key, cursor.low) for key, cursor in self.cursors.items() if cursor.low != cursor.committed]


class GroupOffset:
    """One group in one queue, a light queue's name serves as a topic with the single queue 0."""

    __slots__ = ("_fields", "_line")

    def __init__(self, line: Connection, group: str, topic: str, number: int) -> None:
        self._line = line
        self._fields = {"consumerGroup": group, "topic": topic, "queueId": str(number)}

    async def stored(self) -> int | None:
        """The next offset the group wants; None when it never stored one."""
        fields = {**self._fields, "setZeroIfNotFound": "false"}
        response = await self._line.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        try:
            return int(checked(response).fields["offset"])
        except (KeyError, ValueError) as error:
            raise RemoteViolation(f"an answer without an offset: {response.fields}") from error

    async def store(self, offset: int) -> None:
        """Commit the group's offset; returns when it is durable. Raises LightMQError."""
        fields = {**self._fields, "commitOffset": str(offset)}
        checked(await self._line.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)))


GROUP_PREFIX = "bridge-"
BEGUN = 0
"""Offset of a mark: it is there or not. A later one would be behind the end of a queue that is none."""
EARLIEST = "earliest"
READ_COUNT_MAX = 4_096
"""Records of one read."""
SKIPPED = {STATUS_OFFSET_TOO_SMALL: "retention", STATUS_DAMAGED: "damaged", STATUS_NO_SUCH_QUEUE: "queue_gone"}


class LogReader:
    """Reads what the `out` rules of one connection may want."""

    def __init__(self, line: Connection, config: ConnectionConfig, mapping: OutMapping, outbox: Outbox) -> None:
        self._line = line
        self._config = config
        self._mapping = mapping
        self._outbox = outbox
        self._group = GROUP_PREFIX + config.name
        self._begun: set[RuleConfig] = set()
        self._gone: set[Key] = set()
        self.ends: dict[Key, int] = {}
        """Confirmed end of every queue at the last refresh."""

    @property
    def lag(self) -> int:
        """Records that are not settled."""
        cursors = self._outbox.cursors
        return sum(max(0, end - cursors[key].low) for key, end in self.ends.items() if key in cursors)

    async def begin(self) -> None:
        """Find the place of every queue and store it where there was none."""
        for rule in self._mapping.rules:
            if await self._mark(rule).stored() is not None:
                self._begun.add(rule)
        await self.refresh(0)
        await self.commit()
        for rule in self._mapping.rules:
            if rule not in self._begun:
                await self._mark(rule).store(BEGUN)
                self._begun.add(rule)

    async def refresh(self, wait_ms: int) -> None:
        """Learn of queues and their ends; waits for new records, at most `wait_ms`."""
        known: dict[str, dict[str, int]] = {}
        for (topic, number), cursor in self._outbox.cursors.items():
            known.setdefault(topic, {})[str(number)] = cursor.position
        request = QueueBoundsRequest(
            topics=self._mapping.parents(),
            filter="#" if self._mapping.covers_all else None,
            known=known if wait_ms else None,
            wait_ms=wait_ms,
        )
        command = Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(request))
        reply = decode_bounds_reply(checked(await self._line.request(command, wait_ms + REQUEST_TIMEOUT_MS)).body)
        self.ends = {}
        for queue in reply.queues:
            self.ends[queue.topic, queue.queue] = queue.max
            await self._know(queue)
        for key in self._outbox.cursors.keys() - self.ends.keys():
            del self._outbox.cursors[key]  # its topic was deleted, and no offset can be stored for it any more
            self._gone.add(key)

    def pending(self) -> list[tuple[Key, Cursor]]:
        """Queues with records that were not read."""
        cursors = self._outbox.cursors
        return [(key, cursors[key]) for key, end in self.ends.items() if cursors[key].position < end]

    async def read(self, key: Key, cursor: Cursor) -> tuple[list[tuple[int, RecordView]], int, str, int]:
        """(offset, record) from the cursor's position, where to continue, and why and how many messages are missing."""
        start = cursor.position
        end = min(self.ends[key], start + READ_COUNT_MAX)
        body = encode_range_pull(cursor.queue_id, start, end, self._config.read_bytes)
        command = Command(RequestCode.RANGE_PULL, body=body)
        pulled = decode_range_pull_reply(checked(await self._line.request(command)).body)
        records = [(_offset(record, cursor.queue_id), record) for record in map(_sound, iter_records(pulled.blob))]
        return records, *_onward(pulled, start, end)

    async def commit(self) -> None:
        """Store how far the peer has everything."""
        for key, offset in self._outbox.due():
            await self._queue(key).store(offset)
            cursor = self._outbox.cursors.get(key)
            if cursor is not None:  # its topic may have been deleted meanwhile
                cursor.committed = offset

    async def _know(self, queue: QueueBounds) -> None:
        key = (queue.topic, queue.queue)
        cursor = self._outbox.cursors.get(key)
        if cursor is not None and cursor.queue_id == queue.id:
            if cursor.low > queue.max:  # the log lost its end with the machine's power: what comes there now is new
                cursor.position = queue.max
            return
        anew = cursor is not None or key in self._gone
        committed = None if anew else await self._queue(key).stored()
        if committed is not None:
            start = min(committed, queue.max)
        elif anew or self._is_wanted_from_its_beginning(queue.topic):
            start = queue.min  # the queue is a new one
        else:
            start = queue.max
        self._outbox.cursors[key] = Cursor(queue.id, start, committed)

    def _is_wanted_from_its_beginning(self, parent: str) -> bool:
        return self._config.start == EARLIEST or any(rule in self._begun for rule in self._mapping.covering(parent))

    def _queue(self, key: Key) -> GroupOffset:
        return GroupOffset(self._line, self._group, *key)

    def _mark(self, rule: RuleConfig) -> GroupOffset:
        name = light_queue_name(f"$bridge/{self._config.name}/{rule.local_filter}".encode())
        return GroupOffset(self._line, self._group, name.decode(), 0)


def _sound(record: RecordView) -> RecordView:
    """The broker hands out ranges without reading their checksums."""
    check_record(record.raw, 0, None)
    return record


def _offset(record: RecordView, queue_id: int) -> int:
    return next(offset for queue, offset in record.dispatch() if queue == queue_id)


def _onward(pulled: PulledRange, start: int, end: int) -> tuple[int, str, int]:
    """(where to continue, why messages are missing, how many)."""
    reason = SKIPPED.get(pulled.status, "")
    if pulled.status == STATUS_NO_SUCH_QUEUE:
        return end, reason, end - start
    following = max(pulled.next_offset, pulled.first_offset)
    return following, reason, max(0, pulled.first_offset - start) if reason else 0


POLL_WAIT_MS = 5_000
"""How long our broker may hold one request for new records."""
LASTING = frozenset({0x87, 0x90, 0x95, 0x99})
"""Not authorized, topic name invalid, packet too large, payload format invalid: it would be refused again."""


class Sender:
    """The `out` rules of one connection."""

    def __init__(
        self, config: ConnectionConfig, installation: str, line: Connection, clock: Clock, metrics: BridgeMetrics
    ) -> None:
        self._config = config
        self._clock = clock
        self._place = place_of(installation, config)
        self._mapping = OutMapping(config.rules)
        self.outbox = Outbox(config.in_flight_max)
        self._reader = LogReader(line, config, self._mapping, self.outbox)
        self._refusals: dict[tuple[Cursor, int], int] = {}
        self._settled = asyncio.Event()
        self._peer: BridgeClient | None = None
        self._welcome: ConnectionAccepted | None = None
        self._begun = False
        """Whether the place in the log is stored: from then on nothing published is missed."""
        self._stopping = False
        self._log = get_logger("bridge.out")
        self._counts = MessageCounts(metrics, config.name, OUT)
        metrics.lag.child(config.name, function=lambda: self._reader.lag)
        metrics.in_flight.child(config.name, function=lambda: self.outbox.in_flight)

    async def prepare(self) -> None:
        """Find the place in the log, once; the peer is not needed for it. Raises LightMQError when our broker fails."""
        if not self._begun:
            await self._reader.begin()
            self._begun = True

    def listen(self, peer: BridgeClient) -> None:
        """A new connection."""
        self._peer = peer
        peer.on_settled = self._answered

    async def begin(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:  # noqa: ARG002  # the receiver needs it
        """Keep to the limits of the peer."""
        self._welcome = welcome
        self.outbox.limit(welcome.receive_maximum)

    async def run(self, peer: BridgeClient) -> None:
        """Send until the peer is lost (PeerLostError) or our broker does not answer (LightMQError)."""
        ended = asyncio.ensure_future(peer.until_ended())
        work = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._commit())]
        try:
            await asyncio.wait((ended, *work), return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
            raise PeerLostError(await ended)
        finally:
            ended.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(ended, *work, return_exceptions=True)
            self._peer = None
            self._counts.repeated.value += self.outbox.in_flight
            self.outbox.rewind()

    async def poll(self) -> None:
        """Learn how far the log has got while nothing is sent, for the gauge of what waits."""
        await self._reader.refresh(0)

    async def settle(self, deadline_s: float) -> None:
        """Send no more, wait for acknowledgements, store the offset; part of an orderly stop."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while self.outbox.in_flight:
                    self._settled.clear()
                    await self._settled.wait()
        if self._begun:
            await self._reader.commit()

    async def _send(self) -> None:
        while not self._stopping:
            await self._reader.refresh(POLL_WAIT_MS)
            for key, cursor in self._reader.pending():
                await self._send_some(key, cursor)
        await asyncio.Event().wait()  # until this connection is closed

    async def _send_some(self, key: Key, cursor: Cursor) -> None:
        records, following, missing, count = await self._reader.read(key, cursor)
        if missing:
            self._counts.skip(missing, key[0], count)
        now_ms = self._clock.now_ms()
        for offset, record in records:
            await self._send_record(cursor, offset, record, now_ms)
        self.outbox.passed(cursor, following)

    async def _send_record(self, cursor: Cursor, offset: int, record: RecordView, now_ms: int) -> None:
        copies, reason = outgoing(record, self._mapping, self._place, now_ms)
        if reason:
            self._not_sent(reason, record)
        fitting = [copy for copy in copies if self._fits(copy)]
        if not fitting:
            return
        self.outbox.track(cursor, offset, len(fitting))
        for copy in fitting:
            while not self.outbox.free:
                self._settled.clear()
                await self._settled.wait()
            assert self._peer is not None
            self.outbox.sent(self._peer.publish(copy), cursor, offset)

    def _fits(self, copy: OutgoingCopy) -> bool:
        """Whether the peer can take the message, adapted to what its CONNACK allows."""
        assert self._welcome is not None
        welcome, target = self._welcome, copy.target
        reason = "too_large" if 0 < welcome.packet_bytes_max < copy.size_bytes else ""
        if wrong_topic(target.topic):
            reason = "bad_topic"
        if reason:
            self._counts.drop(reason, target.topic)
            return False
        qos, retain = min(target.qos, welcome.qos_max), target.retain and welcome.retain
        if (qos, retain) != (target.qos, target.retain):
            copy.target = type(target)(target.topic, qos, retain)
        return True

    def _not_sent(self, reason: str, record: RecordView) -> None:
        if reason in REASONS:
            self._counts.keep_back(reason)
        elif reason == EXPIRED:
            self._counts.expire()
        self._log.debug("message_not_sent", connection=self._config.name, topic=record.mqtt_topic, reason=reason)

    def _answered(self, packet_id: int, code: int) -> None:
        """The peer's final answer to a message."""
        place = self.outbox.place(packet_id)
        if place is None:
            return
        if code >= FAILURE:
            tries = self._refusals.get(place, 0) + 1
            if code not in LASTING and tries < self._config.refusals_max:
                self._refusals[place] = tries
                reason = code_in_words(PacketTypes.PUBACK, code)
                self._log.warning("message_refused", connection=self._config.name, reason=reason, tries=tries)
                assert self._peer is not None
                self._peer.give_up(f"the peer refused a message: {reason}")
                return
            self._counts.drop("peer_refused", place[0].queue_id, place[1], code_in_words(PacketTypes.PUBACK, code))
        else:
            self._counts.passed.value += 1
        self._refusals.pop(place, None)
        self.outbox.settled(packet_id)
        self._settled.set()

    async def _commit(self) -> None:
        while True:
            await asyncio.sleep(self._config.commit_interval_ms / 1000)
            await self._reader.commit()
