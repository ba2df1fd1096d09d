"""Transactions over the log: a half message is kept out of sight until its producer says how it ends.

A half message is a record of one hidden queue; its image is the one that will be published (`records.staged`). A commit
appends that image to the queues of its topic as one group with the state record that says so, so after kill -9, or on
another master, both are there or neither is. What is pending is rebuilt from the queue and the TRANSACTION records.
Retention removes no pending half message: `keep_from` copies it to the end of the queue first, and the offset its
producer knows leads to the copy.

Invariant: a half message is published at most once and only by a commit; what is not committed is never visible; one
that is neither committed nor rolled back ends in `EXPIRED_TOPIC`, counted and logged. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.publishing.placement import names_a_time
from broker.store.errors import UnreadableOffsets
from broker.store.placed import Placed, property_value
from broker.store.read_result import OFFSET_TOO_SMALL
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.transactions.half import COMMITTED, COPIED, COPY_PREFIX, EXPIRED, FLOOR_KEY, ROLLED_BACK, Half, HalfTable
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import change_image, encode_image
from remoting.protocol.records.record import FLAG_GROUP_OPEN, RecordView
from remoting.protocol.records.staged import hide, show

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

HALF_QUEUE = b"\x01half\x00"
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where RocketMQ's tools look for messages whose producer never answered."""
TRANSACTION_PREPARED = b"TRAN_MSG"
PRODUCER_GROUP = b"PGROUP"
REAL_TOPIC, REAL_QUEUE = b"REAL_TOPIC", b"REAL_QID"
READ_MAX, READ_BYTES_MAX = 1_000, 4 * 1024 * 1024
"""Records taken up, or copied, in one step."""
OUTCOME_NAMES = {COMMITTED: "committed", ROLLED_BACK: "rolled back", EXPIRED: "expired"}

Append = Callable[[Placed, Sequence[StateChange]], int]


class Transactions:
    """The half messages of this broker and how they end."""

    def __init__(
        self,
        store: LogStore,
        topics: Topics,
        placement: Placement,
        hidden: set[int],
        *,
        pending_max: int,
        check_after_ms: int,
        log: Any,
    ) -> None:
        """`hidden`: queues no reader gets an answer for; that of the half messages is added."""
        self._store = store
        self._topics = topics
        self._placement = placement
        self._pending_max = pending_max
        self._check_after_ms = check_after_ms
        self._log = log
        self._hidden = hidden
        self._queue_id = store.state.queues.find(HALF_QUEUE)
        """None before the first half message."""
        if self._queue_id is not None:
            hidden.add(self._queue_id)
        self.table = _table(store)
        self.counts = dict.fromkeys(OUTCOME_NAMES, 0)
        self.unreadable = 0

    def queue_id(self) -> int:
        """The hidden queue, made when there is none. Raises StoreError."""
        if self._queue_id is None:
            self._queue_id = self._store.queues.open(HALF_QUEUE)
            self._hidden.add(self._queue_id)
        return self._queue_id

    # -- in ------------------------------------------------------------------------------------------------------------

    def prepare(self, image: bytes, properties: Mapping[bytes, bytes]) -> Placed:
        """The half message made of an image, to be appended; its offset is that in the hidden queue.

        Raises:
            Refused: it has no producer group, asks for a delay, could not be published, or too many are pending.
        """
        if not properties.get(PRODUCER_GROUP):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a transactional message needs the property PGROUP")
        view = RecordView(image)
        if names_a_time(view):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a transactional message cannot be delayed")
        queue_id = self.queue_id()
        waiting = self._store.reading.next_offset(queue_id) - self.table.cursor + len(self.table)
        if waiting >= self._pending_max:
            remark = f"{waiting} transactions are pending, the limit transactions_max is {self._pending_max}"
            raise Refused(ResponseCode.SYSTEM_BUSY, remark)
        self._placement.placed(image, now=True)  # what could not be published is refused now
        return Placed(hide(view), [(queue_id,)])

    def take_up(self) -> bool:
        """See some of the half messages that were confirmed; True when there are more."""
        if self._queue_id is None:
            return False
        cursor = self.table.cursor
        records, after = self._read(cursor, READ_MAX)
        for offset, record in enumerate(records, cursor):
            group = property_value(record, PRODUCER_GROUP).decode("utf-8", "replace")
            half = Half(offset, record.position, group, record.store_ms)
            self.table.see(half, record.store_ms + self._check_after_ms)
        self.table.skip(after)
        return after > cursor and after < self._store.reading.bounds(self._queue_id)[1]

    # -- out -----------------------------------------------------------------------------------------------------------

    def record(self, half: Half) -> RecordView | None:
        """The record of a half message, None if it can no longer be read."""
        records, _after = self._read(half.offset, 1)
        return records[0] if records else None

    def topic_of(self, offset: int) -> str | None:
        """The topic of the pending half message at this offset, None if there is none."""
        target = self.table.present(offset)
        while self.table.cursor <= target and self.take_up():
            pass
        half = self.table.pending(target)
        record = None if half is None else self.record(half)
        return None if record is None else bytes(record.topic).decode("utf-8", "replace")

    def end(self, offset: int, position: int, group: str, outcome: bytes) -> tuple[int, Refused | None]:
        """Commit or roll back; returns the log position to be confirmed before the answer, and a refusal if it is one.

        Raises:
            Refused: nothing like it is pending, it belongs to another group, or its topic takes no messages; in the
                last case it stays pending.
            StoreError: nothing has changed.
        """
        target = self.table.present(offset)
        ended = self.table.outcome(target)
        if ended is not None:
            remark = f"the transaction at offset {offset} was {OUTCOME_NAMES[ended]} before"
            refused = None if ended == outcome else Refused(ResponseCode.TRANSACTION_FAILED, remark)
            return self._store.end_position, refused
        half = self._pending(target, None if target != offset else position, group)
        placed = Placed()
        if outcome == COMMITTED:
            record = self.record(half)
            if record is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message {offset} cannot be read")
            placed = self._placement.placed(show(record), now=True)
        return self._append(half, outcome, placed), None

    def expire(self, half: Half) -> None:
        """Nobody knows how it ends: move it to the topic where operators find it. Raises StoreError."""
        record = self.record(half)
        placed = Placed() if record is None else self._placement.placed(self._kept_aside(record), now=True)
        self._append(half, EXPIRED, placed)
        self._log.warning("transaction_expired", group=half.group, offset=half.offset, checks=half.checks)

    def keep_from(self, target: int, append: Append) -> bool:
        """Copy some of what is pending below the log position `target`; True when there is nothing left there."""
        half = self.table.oldest()
        if half is None or half.position >= target:
            return True
        record = self.record(half)
        if record is None:
            self._append(half, EXPIRED, Placed())
            return False
        queue_id = self.queue_id()
        copy_offset = self._store.reading.next_offset(queue_id)
        image = change_image(record, flags=record.flags & ~FLAG_GROUP_OPEN, producer_seq=record.producer_seq)
        ending = self.table.ending(half.offset, COPIED, copy_offset)
        append(Placed(image, [(queue_id,)]), _records(ending.changes(self.table.floor)))
        self.table.ended(ending)
        return False

    # -- inner parts ---------------------------------------------------------------------------------------------------

    def _pending(self, offset: int, position: int | None, group: str) -> Half:
        """The pending half message; `position` None: it was copied since."""
        half = self.table.pending(offset)
        if half is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no half message is pending at offset {offset}")
        if half.group != group:
            remark = f"the transaction at offset {offset} is not of producer group {group}"
            raise Refused(ResponseCode.TRANSACTION_STATE_GROUP_WRONG, remark)
        if position is not None and half.position != position:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message {offset} is not at log position {position}")
        return half

    def _append(self, half: Half, outcome: bytes, placed: Placed) -> int:
        ending = self.table.ending(half.offset, outcome)
        end = self._store.append(placed, changes=_records(ending.changes(self.table.floor))).end_position
        self.table.ended(ending)
        self.counts[outcome] += 1
        return end

    def _kept_aside(self, record: RecordView) -> bytes:
        image = RecordView(show(record))
        self._topics.ensure(EXPIRED_TOPIC, 1)
        wanted = record.producer_seq & 0xFFFF
        properties = [(bytes(key), bytes(value)) for key, value in image.properties()]
        properties += [(REAL_TOPIC, bytes(image.topic)), (REAL_QUEUE, b"%d" % wanted)]
        return encode_image(
            flags=image.flags, born_ms=image.born_ms, topic=EXPIRED_TOPIC.encode(), queue_index=0,
            keys=bytes(image.keys), tags=bytes(image.tags), properties=properties, body=bytes(image.body),
        )  # fmt: skip

    def _read(self, offset: int, count: int) -> tuple[list[RecordView], int]:
        """(confirmed records from there on, where to go on); what cannot be read is counted and passed over."""
        try:
            result = self._store.reading.read(self.queue_id(), offset, count, READ_BYTES_MAX)
        except UnreadableOffsets as error:
            self.unreadable += error.next_offset - offset
            self._log.error("transactions_unreadable", messages=error.next_offset - offset, reason=str(error))
            return [], error.next_offset
        if result.status == OFFSET_TOO_SMALL:
            return [], result.first_offset
        return [RecordView(record) for record in result.records], offset + len(result.records)


def _table(store: LogStore) -> HalfTable:
    """The table as the state records describe it; nothing of the queue has been seen."""
    floor, outcomes, copies = 0, {}, {}
    for key, (value, _position) in store.state.items(state_kinds.TRANSACTION):
        if key == FLOOR_KEY:
            floor = int(value)
        elif key.startswith(COPY_PREFIX):
            copies[int(key.removeprefix(COPY_PREFIX))] = int(value)
        else:
            outcomes[int(key)] = value
    return HalfTable(floor, outcomes, copies)


def _records(changes: Sequence[tuple[bytes, bytes | None]]) -> list[StateChange]:
    return [StateChange(state_kinds.TRANSACTION, key, value) for key, value in changes]
