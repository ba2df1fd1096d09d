"""Our log as the outbox reads it: where to begin, what is new, records, and the offsets that say how far it got.

The offsets are those of a consumer group (`bridge-` and the connection's name) in the parent queues. A rule that was
ever begun has a mark beside them, the offset 1 in a light queue named after the rule: by it a queue without an offset
is known to be new (and is read from its beginning) or to be old to a new rule (and is read from its end).
Invariant: once `begin` returned, nothing published later under a rule is passed over, whether or not the peer is there.
Loop rule: all on the loop's thread.

The offset of the bridge's consumer group in one queue of our broker: read, stored durably.

Invariant: `store` returns when the broker has the offset on its disk. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from mqtt_bridge.config import ConnectionConfig, RuleConfig
from mqtt_bridge.in_flight import Cursor, Key, Outbox
from mqtt_bridge.mapping import OutMapping
from remoting.protocol.bodies.bounds_body import (
    QueueBounds,
    QueueBoundsRequest,
    decode_bounds_reply,
    encode_bounds_request,
)
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_SMALL,
    PulledRange,
    decode_range_pull_reply,
    encode_range_pull,
)
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import light_queue_name
from remoting.protocol.records.record import RecordView, check_record, iter_records
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked


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
BEGUN = 1
"""Offset of a mark."""
EARLIEST = "earliest"
READ_COUNT_MAX = 4_096
"""Records looked at in one read."""
SKIPPED = {
    STATUS_OFFSET_TOO_SMALL: "retention",
    STATUS_DAMAGED: "damaged",
    STATUS_NO_SUCH_QUEUE: "queue_gone",
}


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
        """Confirmed end of every queue at the last look."""

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
        """Learn of queues and their ends; waits for something to look at, at most `wait_ms`."""
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
        """Queues with something to look at."""
        cursors = self._outbox.cursors
        return [(key, cursors[key]) for key, end in self.ends.items() if cursors[key].position < end]

    async def read(self, key: Key, cursor: Cursor) -> tuple[list[tuple[int, RecordView]], int, str, int]:
        """(offset, record) from the cursor's position, where to go on, and if something is missing: why, how many."""
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
    """(where to go on, why something is missing, how many messages)."""
    reason = SKIPPED.get(pulled.status, "")
    if pulled.status == STATUS_NO_SUCH_QUEUE:
        return end, reason, end - start
    following = max(pulled.next_offset, pulled.first_offset)
    return following, reason, max(0, pulled.first_offset - start) if reason else 0
