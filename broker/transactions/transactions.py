"""Transactions over the log: a half message is kept out of sight until its producer says how it ends.

A half message is a record of one hidden queue; its image is the one that will be published (`image.hide`). A commit
appends that image to the queues of its topic as one group with the state record that says so, so after kill -9, or on
another master, both are there or neither is. What is pending is rebuilt from the queue and the TRANSACTION records.
Retention removes no pending half message: `keep_from` copies it to the end of the queue first, and the offset its
producer knows leads to the copy.

Invariant: a half message is published at most once and only by a commit; what is not committed is never visible; one
that is neither committed nor rolled back ends in `EXPIRED_TOPIC`, counted and logged. Loop thread only.

Half messages in a table: which are pending, how each of the others ended, and whose producer is to be asked next.

Half messages are the records of one hidden queue, known by their offsets in it. What is durable is small: the outcome
of each one at or above the floor that has ended, and the floor, below which all have.

    floor ........ everything below has ended, and its outcomes are no longer kept; it stays `ENDED_KEPT` offsets behind
                   the first pending one, so that a decision made again is known
    cursor ....... everything below has been seen; what is at or above the floor and has no outcome is pending

    key    "floor"           value  decimal offset
    key    decimal offset    value  C committed | R rolled back | X expired | M copied and pending
    key    "at " + offset    value  decimal offset of the pending copy of that half message

Invariant: an offset below the cursor is pending, or has an outcome, or lies below the floor. An outcome never changes,
except that of a copied one, which becomes that of its copy.
Pure: changes are computed first (`ending`), written by the owner, then taken over (`ended`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.store.errors import UnreadableOffsets
from broker.store.index.absence import Absence
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.store.placed import Placed, property_value
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.delay import names_a_time
from remoting.protocol.records.image import change_image, encode_image, hide, show, wanted_queue
from remoting.protocol.records.record import FLAG_GROUP_OPEN, FLAG_SYS_SHIFT, RecordView, header_of

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics


COMMITTED, ROLLED_BACK, EXPIRED, COPIED = b"C", b"R", b"X", b"M"
FLOOR_KEY, COPY_PREFIX = b"floor", b"at "
ENDED_KEPT = 1_000
"""Outcomes that are kept although nothing before them is pending: a producer whose decision was not answered repeats it
within that many transactions."""
DROPPED_MAX = 1_000
"""Most offsets that the floor rises in one step; the next transaction that ends raises it further."""


@dataclass(slots=True)
class Half:
    """A pending half message."""

    offset: int
    position: int
    """Of its record in the log."""
    group: str
    """Producer group that knows the outcome."""
    stored_ms: int
    checks: int = 0
    """How often the group was asked since this broker became the master."""


@dataclass(slots=True, frozen=True)
class HalfEnding:
    """What changes when one half message ends."""

    offset: int
    outcome: bytes
    floor: int
    dropped: tuple[int, ...]
    """Offsets whose outcomes are no longer kept."""
    known_as: tuple[int, ...]
    """Offsets at which producers know it, if it is a copy."""
    copied_to: int | None = None

    def changes(self, floor_before: int) -> list[tuple[bytes, bytes | None]]:
        """(key, value) to be written; None deletes."""
        found: list[tuple[bytes, bytes | None]] = []
        if self.offset >= self.floor:
            found.append((b"%d" % self.offset, self.outcome))
        if self.floor != floor_before:
            found.append((FLOOR_KEY, b"%d" % self.floor))
        found += [(b"%d" % offset, None) for offset in self.dropped]
        if self.copied_to is None:
            found += [(COPY_PREFIX + b"%d" % known, None) for known in self.known_as]
            found += [(b"%d" % known, self.outcome) for known in self.known_as if known >= self.floor]
        else:
            copied_to = b"%d" % self.copied_to
            found += [(COPY_PREFIX + b"%d" % known, copied_to) for known in (self.offset, *self.known_as)]
        return found


class HalfTable:
    """The half messages of one broker."""

    def __init__(
        self, floor: int = 0, outcomes: Mapping[int, bytes] | None = None, copies: Mapping[int, int] | None = None
    ) -> None:
        """`outcomes`: of the offsets at or above `floor` that have ended; `copies`: known offset -> present offset."""
        self.floor = self.cursor = floor
        self._outcomes = dict(outcomes or {})
        self._copies = dict(copies or {})
        self._pending: dict[int, Half] = {}
        """In order of offset."""
        self._due: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def see(self, half: Half, due_ms: int) -> None:
        """Take up the record at the cursor; its group is asked at `due_ms` unless it has ended."""
        assert half.offset == self.cursor, (half.offset, self.cursor)
        self.cursor += 1
        if half.offset not in self._outcomes:
            self._pending[half.offset] = half
            heapq.heappush(self._due, (due_ms, half.offset))

    def skip(self, next_offset: int) -> None:
        """Records below `next_offset` can no longer be read."""
        self.cursor = max(self.cursor, next_offset)

    def pending(self, offset: int) -> Half | None:
        """The half message at this offset, None if it is not pending."""
        return self._pending.get(offset)

    def outcome(self, offset: int) -> bytes | None:
        """How the one at this offset ended; None if it is pending, unknown or below the floor."""
        return self._outcomes.get(offset)

    def present(self, offset: int) -> int:
        """Where the half message that a producer knows at this offset is now."""
        return self._copies.get(offset, offset)

    def oldest(self) -> Half | None:
        """The pending one of the lowest offset."""
        return next(iter(self._pending.values()), None)

    def take_due(self, now_ms: int, count: int) -> list[Half]:
        """Up to `count` pending ones whose time has come; each needs `ask_again` or an end."""
        found: list[Half] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < count:
            half = self._pending.get(heapq.heappop(self._due)[1])
            if half is not None:
                found.append(half)
        return found

    def ask_again(self, half: Half, due_ms: int) -> None:
        """Its time comes again."""
        heapq.heappush(self._due, (due_ms, half.offset))

    def ending(self, offset: int, outcome: bytes, copied_to: int | None = None) -> HalfEnding:
        """What changes when this pending one ends; with `copied_to` it continues as the one at that offset."""
        assert offset in self._pending, offset
        first = next((pending for pending in self._pending if pending != offset), self.cursor)
        floor = max(self.floor, first - ENDED_KEPT)
        floor = min(floor, self.floor + DROPPED_MAX)
        dropped = tuple(below for below in range(self.floor, floor) if below in self._outcomes)
        known_as = tuple(known for known, present in self._copies.items() if present == offset)
        return HalfEnding(offset, outcome, floor, dropped, known_as, copied_to)

    def ended(self, ending: HalfEnding) -> None:
        """The changes are written."""
        del self._pending[ending.offset]
        self.floor = ending.floor
        for offset in ending.dropped:
            del self._outcomes[offset]
        if ending.offset >= ending.floor:
            self._outcomes[ending.offset] = ending.outcome
        if ending.copied_to is None:
            for known in ending.known_as:
                del self._copies[known]
                if known in self._outcomes:
                    self._outcomes[known] = ending.outcome
        else:
            self._copies.update(dict.fromkeys((ending.offset, *ending.known_as), ending.copied_to))


HALF_QUEUE = b"\x01half\x00"
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where RocketMQ's tools look for messages whose producer never answered."""
TRANSACTION_PREPARED = b"TRAN_MSG"
PRODUCER_GROUP = b"PGROUP"
REAL_TOPIC, REAL_QUEUE = b"REAL_TOPIC", b"REAL_QID"
CHECK_AFTER_S = b"CHECK_IMMUNITY_TIME_IN_SECONDS"
CHECK_AFTER_DIGITS_MAX = 9
"""A longer number of seconds is passed over; 30 years are enough."""
COMMITTED_FLAG = 0x8
"""Bit of sysFlag of a message that was committed."""
READ_MAX, READ_BYTES_MAX = 1_000, 4 * 1024 * 1024
"""Records taken up, or copied, in one step."""
OUTCOME_NAMES = {COMMITTED: "committed", ROLLED_BACK: "rolled back", EXPIRED: "expired"}

Append = Callable[[Placed, Sequence[StateChange]], int]


class HalfQueue:
    """The half messages of one log: what is read of the hidden queue. Writes nothing."""

    def __init__(self, store: LogStore, check_after_ms: int, log: Any) -> None:
        """`check_after_ms`: see `first_check_ms`."""
        self.table = _table(store)
        self.unreadable = 0
        self.check_after_ms = check_after_ms
        """How long after it was stored the producer of a half message is asked first, if the message does not say."""
        self._store, self._log = store, log

    @property
    def queue_id(self) -> int | None:
        """The hidden queue, None before the first half message."""
        return self._store.queues.find(HALF_QUEUE)

    def take_up(self) -> bool:
        """See some of the half messages that were confirmed; True when there are more."""
        queue_id = self.queue_id
        if queue_id is None:
            return False
        cursor = self.table.cursor
        records, after = self._read(queue_id, cursor, READ_MAX)
        for offset, record in enumerate(records, cursor):
            group = property_value(record, PRODUCER_GROUP).decode("utf-8", "replace")
            half = Half(offset, record.position, group, record.store_ms)
            self.table.see(half, record.store_ms + self._first_check_ms(record))
        self.table.skip(after)
        return after > cursor and after < self._store.reading.bounds(queue_id)[1]

    def record(self, half: Half) -> RecordView | Absence:
        """The record of a half message, or why there is none."""
        queue_id = self.queue_id
        found = Absence.NOT_YET if queue_id is None else self._store.reading.record(queue_id, half.offset)
        return found if isinstance(found, Absence) else RecordView(found)

    def topic_of(self, offset: int) -> str | None:
        """The topic of the pending half message at this offset, None if there is none."""
        half = None if self.known(offset) is None else self.table.pending(self.table.present(offset))
        record = None if half is None else self.record(half)
        return None if record is None or isinstance(record, Absence) else bytes(record.topic).decode("utf-8", "replace")

    def absent(self, target: int) -> Refused:
        """The refusal of a decision about a half message that is not pending, or not confirmed yet."""
        if self.table.cursor <= target < self._end():
            return Refused(ResponseCode.SYSTEM_BUSY, f"the half message {target} is not confirmed yet: try again")
        return Refused(ResponseCode.SYSTEM_ERROR, f"no half message is pending at offset {target}")

    def known(self, offset: int) -> RecordView | None:
        """The half message that a producer knows at this offset, pending or ended; None if there is none, or no more.

        One that ended is read as long as retention keeps it.
        """
        target = self.table.present(offset)
        while self.table.cursor <= target and self.take_up():
            pass
        queue_id = self.queue_id
        if queue_id is None or not 0 <= target < self.table.cursor:
            return None
        found = self._store.reading.record(queue_id, target)
        return None if isinstance(found, Absence) else RecordView(found)

    def outcome(self, offset: int) -> bytes | None:
        """How the one that a producer knows at this offset ended, None if it has not, or is not known."""
        return self.table.outcome(self.table.present(offset))

    def pending(self, offset: int, position: int, group: str) -> Half:
        """The pending half message that its producer names so; a copy has another position. Raises Refused."""
        target = self.table.present(offset)
        half = self.table.pending(target)
        if half is None:
            raise self.absent(target)
        if half.group != group:
            remark = f"the transaction at offset {target} is not of producer group {group}"
            raise Refused(ResponseCode.TRANSACTION_STATE_GROUP_WRONG, remark)
        if target == offset and half.position != position:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message {target} is not at log position {position}")
        return half

    def _end(self) -> int:
        """The offset that the next half message gets."""
        queue_id = self.queue_id
        return 0 if queue_id is None else self._store.reading.next_offset(queue_id)

    def _first_check_ms(self, record: RecordView) -> int:
        """How long after it was stored its producer is asked first: as the message says, or as configured."""
        seconds = property_value(record, CHECK_AFTER_S)
        if not seconds.isdigit() or len(seconds) > CHECK_AFTER_DIGITS_MAX:
            return self.check_after_ms
        return int(seconds) * 1_000

    def _read(self, queue_id: int, offset: int, count: int) -> tuple[list[RecordView], int]:
        """(confirmed records from there on, where to continue); unreadable records are counted and skipped."""
        try:
            result = self._store.reading.read(queue_id, offset, count, READ_BYTES_MAX)
        except UnreadableOffsets as error:
            self.unreadable += error.next_offset - offset
            self._log.error("transactions_unreadable", messages=error.next_offset - offset, reason=str(error))
            return [], error.next_offset
        if result.status == OFFSET_TOO_SMALL:
            return [], result.first_offset
        return [RecordView(record) for record in result.records], offset + len(result.records)


def contradiction(offset: int, ended: bytes, outcome: bytes) -> Refused | None:
    """The refusal of an outcome that is not the one a transaction has; None if it is the same."""
    remark = f"the transaction at offset {offset} was {OUTCOME_NAMES[ended]} before"
    return None if ended == outcome else Refused(ResponseCode.TRANSACTION_FAILED, remark)


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
        self._log = log
        self._hidden = hidden
        self.halves = HalfQueue(store, check_after_ms, log)
        if self.halves.queue_id is not None:
            hidden.add(self.halves.queue_id)
        self.table = self.halves.table
        self.counts = dict.fromkeys(OUTCOME_NAMES, 0)

    def configure(self, pending_max: int, check_after_ms: int) -> None:
        """Take over how many transactions may be open, and after what time a new one is asked about."""
        self._pending_max, self.halves.check_after_ms = pending_max, check_after_ms

    def queue_id(self) -> int:
        """The hidden queue, made when there is none. Raises StoreError."""
        found = self.halves.queue_id
        if found is None:
            found = self._store.queues.open(HALF_QUEUE)
            self._hidden.add(found)
        return found

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

    # -- out -----------------------------------------------------------------------------------------------------------

    def end(self, offset: int, position: int, group: str, outcome: bytes) -> tuple[int, Refused | None]:
        """Commit or roll back; returns the log position to be confirmed before the answer, and a refusal if it is one.

        Raises:
            Refused: nothing like it is pending, it belongs to another group, or its topic takes no messages; in the
                last case it stays pending.
            StoreError: nothing has changed.
        """
        ended = self.halves.outcome(offset)
        if ended is not None:
            return self._store.end_position, contradiction(offset, ended, outcome)
        half = self.halves.pending(offset, position, group)
        placed = Placed()
        if outcome == COMMITTED:
            record = self.halves.record(half)
            if isinstance(record, Absence):
                raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message {offset} cannot be read: {record.value}")
            placed = self._placement.placed(_committed(record), now=True)
        return self._append(half, outcome, placed), None

    def expire(self, half: Half) -> None:
        """Move a transaction of unknown outcome to the topic where operators find it.

        Raises:
            StoreError: the log cannot be written.
            Refused: its message cannot be read, or not stored there; it stays pending.
        """
        record = self.halves.record(half)
        if record is Absence.GONE:
            placed = Placed()
        elif isinstance(record, Absence):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message {half.offset} cannot be read: {record.value}")
        else:
            placed = self._kept_aside(record)
        self._append(half, EXPIRED, placed)
        self._log.warning("transaction_expired", group=half.group, offset=half.offset, checks=half.checks)

    def keep_from(self, target: int, append: Append) -> bool:
        """Copy some of what is pending below the log position `target`; True when there is nothing left there."""
        if self.halves.take_up():
            return False  # those that were not seen yet are pending too
        half = self.table.oldest()
        if half is None or half.position >= target:
            return True
        record = self.halves.record(half)
        if isinstance(record, Absence):
            if record is not Absence.NOT_YET:  # damaged: retention takes it now, and there is nothing to copy
                self._log.error("transaction_lost", group=half.group, offset=half.offset, reason=record.value)
                self._append(half, EXPIRED, Placed())
            return False
        queue_id = self.queue_id()
        copy_offset = self._store.reading.next_offset(queue_id)
        image = change_image(record, flags=record.flags & ~FLAG_GROUP_OPEN, producer_seq=header_of(record).producer_seq)
        ending = self.table.ending(half.offset, COPIED, copy_offset)
        append(Placed(image, [(queue_id,)]), _records(ending.changes(self.table.floor)))
        self.table.ended(ending)
        return False

    # -- inner parts ---------------------------------------------------------------------------------------------------

    def _append(self, half: Half, outcome: bytes, placed: Placed) -> int:
        ending = self.table.ending(half.offset, outcome)
        end = self._store.append(placed, changes=_records(ending.changes(self.table.floor))).end_position
        self.table.ended(ending)
        self.counts[outcome] += 1
        return end

    def _kept_aside(self, record: RecordView) -> Placed:
        """Its message in the topic where no client sends to, and in no light queue."""
        image = RecordView(show(record))
        self._topics.ensure(EXPIRED_TOPIC, 1, maker="")
        wanted = header_of(record).producer_seq & 0xFFFF
        properties = [(bytes(key), bytes(value)) for key, value in image.properties()]
        properties += [(REAL_TOPIC, bytes(image.topic)), (REAL_QUEUE, b"%d" % wanted)]
        kept = encode_image(
            flags=image.flags, born_ms=image.born_ms, topic=EXPIRED_TOPIC.encode(), queue_index=0,
            keys=bytes(image.keys), tags=bytes(image.tags), properties=properties, body=bytes(image.body),
        )  # fmt: skip
        return Placed(kept, [self._topics.queue_ids(EXPIRED_TOPIC)[:1]])


def _committed(record: RecordView) -> bytes:
    """The message that a half message becomes."""
    image = RecordView(show(record))
    flags = image.flags | COMMITTED_FLAG << FLAG_SYS_SHIFT
    return change_image(image, flags=flags, queue_index=wanted_queue(image))


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
