"""The lite topics of a broker, when they expire, and which messages of them each group has.

`LiteTopics`: the light queues below parent topics of type LITE, however they came to be: by a send with a lite topic or
by an MQTT publish. A parent topic's `lite.topic.expiration` (minutes; without it, or -1: never) is counted from the
last message of each lite topic; an expired one is deleted with its offsets. One that an MQTT session subscribes to
stays. Per queue id there is one byte (what it is) and, below parents with an expiration, four (when it is due).

`Ownership`: a group's offset in a lite topic (GROUP_OFFSET, under the name of the light queue) is that of the next
message to give. What lies below and is in flight is an entry of LITE_BATCH (layout of `broker.pop.ordered`). Messages
are given in order, at most `MESSAGES_MAX` neighbours at a time, and no further ones before these are acknowledged; what
is not acknowledged in time is given again, in place.

Acknowledgements of one turn of the loop gather (`broker.pop.gathering`) and are written before the table is used;
deliveries of one turn are held and written together.

Invariants: nothing behind a message in flight is given; one whose acknowledgement has gathered is not found; a count
of lite topics is exact once their messages are confirmed. Loop thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from broker.groups.groups import group_offset_key, offset_change, offset_in
from broker.lite.registry import group_rules, parent_of, queue_name, queue_prefix
from broker.pop.check_points import Owned
from broker.pop.held import HeldChanges
from broker.pop.ordered import OrderedBatch, OrderedQueues
from broker.store.errors import StoreError, UnreadableOffsets
from broker.store.index.absence import Absence
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.store.state.state_kinds import GROUP_OFFSET, LITE_BATCH, StateChange
from broker.topics.topics import LITE_EXPIRATION
from remoting.native.vectors import nonzero, view, within
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.groups.groups import Groups
    from broker.pop.ordered import BlockChange
    from broker.store.log_store import LogStore
    from broker.subscriptions.filters import Subscribers
    from broker.topics.topics import Topics

MESSAGES_MAX = 32
"""Most messages of one pop, RocketMQ's limit too."""
DUE_PER_PASS = 1_000
"""Lite topics whose messages were not acknowledged in time that one pass looks at."""
RETRY_MS = 1_000
"""When what a deleted group has is looked at again because it could not be written, and what is not confirmed yet."""
RECHECK_MS = 60_000
"""When a lite topic is offered again that nobody has popped since its time was over."""
EXPIRED_PER_PASS_MAX = 500
"""Lite topics examined for their expiration in one pass."""
MINUTE_S, MILLISECONDS = 60, 1_000
INDEX = 0
"""The only queue number of a light queue."""
_UNKNOWN, _OTHER, _LITE = range(3)
_SOON = 1
"""Due at once: the last message is read before anything is deleted."""


class LiteTopics:
    """The light queues below parent topics of type LITE."""

    def __init__(
        self,
        store: LogStore,
        topics: Topics,
        groups: Groups,
        *,
        subscribers: Subscribers,
        topics_max: int,
    ) -> None:
        """`topics_max`: most lite topics of one parent topic that sends can make."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._subscribers = subscribers
        self._topics_max = topics_max
        self.expirations: dict[str, int] = {}
        """Parent topic -> seconds after the last message, 0: never. Always the same dict."""
        self.counts: dict[str, int] = {}
        """Parent topic -> lite topics."""
        self._kinds = bytearray()
        self._due = array("I")
        for config in topics:
            self._changed(config.name, False)
        topics.on_change(self._changed)

    def require(self, parent: str) -> None:
        """Refused unless there is such a parent topic: TOPIC_NOT_EXIST, or INVALID_PARAMETER for another type."""
        self._topics.require(parent)
        if parent not in self.expirations:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic [{parent}] is not of type LITE")

    def open(self, parent: str, lite_topic: str, now_ms: int) -> None:
        """Make the queue of a lite topic that is sent to, if it is new. Refused(LMQ_QUOTA_EXCEEDED) at the limit."""
        name = queue_name(parent, lite_topic)
        if self._store.queues.find(name) is not None:
            return
        if self.counts[parent] >= self._topics_max:
            remark = f"the topic [{parent}] has {self.counts[parent]} lite topics, the limit is {self._topics_max}"
            raise Refused(ResponseCode.LMQ_QUOTA_EXCEEDED, remark)
        self._add(self._store.queues.open(name), parent, now_ms // MILLISECONDS + self.expirations[parent])

    def grew(self, queue_ids: Sequence[int], now_ms: int) -> Iterator[tuple[bytes, str]]:
        """(queue name, parent topic) of the lite topics among queues that have new messages."""
        kinds, queues = self._kinds, self._store.state.queues
        for queue_id in queue_ids:
            kind = kinds[queue_id] if queue_id < len(kinds) else _UNKNOWN
            if kind == _OTHER:
                continue
            name = queues.name(queue_id)
            parent = None if name is None else parent_of(name)
            expiration_s = None if parent is None else self.expirations.get(parent)
            if name is None or parent is None or expiration_s is None:
                self._set(queue_id, _OTHER, 0)
                continue
            due_s = now_ms // MILLISECONDS + expiration_s if expiration_s else 0
            if kind == _UNKNOWN:
                self._add(queue_id, parent, due_s)
            elif expiration_s:
                self._due[queue_id] = due_s
            yield name, parent

    def names(self, parent: str) -> Iterator[bytes]:
        """The queue names of all lite topics of a parent topic."""
        queues = self._store.state.queues
        for queue_id in queues.ids_with_prefix(queue_prefix(parent)):
            name = queues.name(queue_id)
            if name is not None and parent_of(name) == parent:
                yield name

    def groups_of(self, parent: str) -> list[str]:
        """The groups that are bound to a parent topic."""
        rules = ((config.group_name, group_rules(config.attributes)) for config in self._groups)
        return [group for group, found in rules if found is not None and found.topic == parent]

    def due(self, now_ms: int) -> bool:
        """Whether there may be lite topics whose time is over."""
        return bool(self._candidates(now_ms))

    def expired(self, now_ms: int) -> list[tuple[int, bytes, str]]:
        """(queue id, queue name, parent topic) of some lite topics whose time is over."""
        queues = self._store.queues
        found = [queue_id for queue_id in self._candidates(now_ms) if self._has_expired(queue_id, now_ms)]
        return [(queue_id, name, parent_of(name) or "") for queue_id in found for name in (queues.name(queue_id),)]

    def delete(self, expired: Sequence[tuple[int, bytes, str]], changes: Sequence[StateChange]) -> None:
        """Delete expired lite topics, in one group with these changes. Raises StoreError: nothing has changed."""
        self._store.queues.delete([queue_id for queue_id, _name, _parent in expired], changes)
        for queue_id, _name, parent in expired:
            self.counts[parent] -= 1
            self._set(queue_id, _OTHER, 0)

    def _candidates(self, now_ms: int) -> list[int]:
        due = view(self._due, "I", len(self._due))
        return nonzero(within(due, 1, now_ms // MILLISECONDS + 1))[:EXPIRED_PER_PASS_MAX].tolist()

    def _has_expired(self, queue_id: int, now_ms: int) -> bool:
        """Whether its time is over; sets when it is due otherwise."""
        name = self._store.state.queues.name(queue_id)
        parent = None if name is None else parent_of(name)
        expiration_s = self.expirations.get(parent or "", 0)
        if not expiration_s:
            self._due[queue_id] = 0
            return False
        last_ms = self._last_ms(queue_id, now_ms)
        due_s = last_ms // MILLISECONDS + expiration_s
        if due_s * MILLISECONDS <= now_ms and not self._subscribers.any(queue_id):
            return True
        self._due[queue_id] = max(due_s, now_ms // MILLISECONDS + MINUTE_S)
        return False

    def _last_ms(self, queue_id: int, now_ms: int) -> int:
        """When the last message was stored: 0 where there is none any more, now where it is not confirmed yet."""
        low, high = self._store.reading.bounds(queue_id)
        if self._store.reading.next_offset(queue_id) > high:
            return now_ms
        if low == high:
            return 0
        record = self._store.reading.record(queue_id, high - 1)
        return now_ms if isinstance(record, Absence) else RecordView(record).store_ms

    def _changed(self, name: str, _created: bool) -> None:
        """A topic was created, changed or deleted."""
        config = self._topics.get(name)
        if config is None or not config.takes_lite:
            if self.expirations.pop(name, None) is not None:
                del self.counts[name]
                self._kinds, self._due = bytearray(), array("I")
                for parent in self.expirations:
                    self._count(parent)
            return
        minutes = int(config.attributes.get(LITE_EXPIRATION, "-1"))
        expiration_s = max(0, minutes) * MINUTE_S
        if self.expirations.get(name) != expiration_s:
            self.expirations[name] = expiration_s
            self._count(name)

    def _count(self, parent: str) -> None:
        self.counts[parent] = 0
        queues = self._store.state.queues
        for queue_id in queues.ids_with_prefix(queue_prefix(parent)):
            if parent_of(queues.name(queue_id) or b"") == parent:
                self._add(queue_id, parent, _SOON)

    def _add(self, queue_id: int, parent: str, due_s: int) -> None:
        self._set(queue_id, _LITE, due_s if self.expirations[parent] else 0)
        self.counts[parent] += 1

    def _set(self, queue_id: int, kind: int, due_s: int) -> None:
        missing = queue_id + 1 - len(self._kinds)
        if missing > 0:
            missing += len(self._kinds) // 2
            self._kinds += bytes(missing)
            self._due.frombytes(bytes(4 * missing))
        self._kinds[queue_id] = kind
        self._due[queue_id] = due_s


@dataclass(slots=True)
class LiteDelivery:
    """Messages of one lite topic for one pop."""

    name: bytes
    queue_id: int
    front: int
    """The next offset to give afterwards."""
    moved: bool = False
    """Whether that is another one than before."""
    reached: int = 0
    """What was in flight below this offset and is not given can no longer be read."""
    offsets: list[int] = field(default_factory=list)
    views: list[RecordView] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """How often each was given before."""


class Ownership:
    """What each group has of the lite topics."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        items = ((bytes(key), value) for key, (value, _position) in store.state.items(LITE_BATCH))
        self.held = HeldChanges(store)
        """What deliveries of this turn change."""
        self.passed_over = {Absence.GONE: 0, Absence.DAMAGED: 0}
        """Messages that were not given, by why they could not be read."""
        self._table = OrderedQueues(self._lookup, items, LITE_BATCH)
        self.gathered: dict[tuple[str, int], set[int]] = {}
        """Group and queue id -> offsets of messages whose acknowledgement has gathered."""
        self.write_gathered: Callable[[], None] = self.gathered.clear
        """Writes these acknowledgements, and empties that first."""

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def _queues(self) -> OrderedQueues:
        """What is in flight, without what was acknowledged."""
        if self.gathered:
            self.write_gathered()
        return self._table

    def find(self, group: str, queue_id: int, offset: int) -> Owned | None:
        """The ownership of a message, None when it is not in flight."""
        if offset in self.gathered.get((group, queue_id), ()):
            return None
        return self._table.find(group, queue_id, offset)

    def batch(self, group: str, queue_id: int) -> OrderedBatch | None:
        """What a group has of a lite topic, None for nothing."""
        return self._queues.batch(group, queue_id)

    def front(self, group: str, name: bytes, queue_id: int) -> int:
        """The offset of the next message to give; a group that is new begins at the oldest one."""
        found = self.held.value(GROUP_OFFSET, group_offset_key(group, name.decode(), INDEX))
        low = self._store.reading.bounds(queue_id)[0]
        return low if found is None else max(low, offset_in(found))

    def ready(self, group: str, name: bytes, now_ms: int) -> bool:
        """Whether there is something to give."""
        queue_id = self._store.queues.find(name)
        if queue_id is None:
            return False
        batch = self.batch(group, queue_id)
        if batch is not None:
            return batch.is_free(b"", now_ms)
        return self.front(group, name, queue_id) < self._store.reading.bounds(queue_id)[1]

    def next(
        self, group: str, name: bytes, room: int, bytes_max: int, now_ms: int, attempt: bytes = b""
    ) -> LiteDelivery | None:
        """What to give next, None for nothing. An attempt that has got messages gets the same ones before their time
        is over."""
        queue_id = self._store.queues.find(name)
        if queue_id is None:
            return None
        batch = self.batch(group, queue_id)
        delivery = LiteDelivery(name, queue_id, self.front(group, name, queue_id))
        if batch is None:
            self._read_next(delivery, min(room, MESSAGES_MAX), bytes_max)
            return delivery if delivery.moved else None
        if not batch.is_free(attempt, now_ms):
            return None
        more = 0 if batch.is_repeat(attempt) else 1
        for offset, times in islice(batch.times.items(), room):
            record = self._store.reading.record(queue_id, offset)
            if record is Absence.NOT_YET:
                break
            delivery.reached = offset + 1
            if isinstance(record, Absence):
                self.passed_over[record] += 1
                continue
            delivery.offsets.append(offset)
            delivery.views.append(RecordView(record))
            delivery.times.append(times + more)
        return delivery if delivery.reached else None

    def keep(self, group: str, deliveries: Iterable[LiteDelivery], owned: Owned, attempt: bytes) -> None:
        """Let the group have these messages from now on; `held.write` follows."""
        table = self._queues
        for each in deliveries:
            for change in table.give(group, each.queue_id, attempt, each.offsets, each.reached, owned):
                table.keep(change, self.held)
            if each.moved:
                self.held.keep([offset_change(group, each.name.decode(), INDEX, each.front)])

    def prolong(self, group: str, queue_id: int, offset: int, owned: Owned) -> int:
        """The group has a message, in flight, for another time; returns the position to be confirmed."""
        return self._write(self._queues.move(group, queue_id, offset, owned))

    def end(self, taken: Mapping[tuple[str, bytes, int], list[int]]) -> int:
        """Messages in flight are done, by (group, queue name, queue id); returns the position to be confirmed.

        Raises:
            StoreError: nothing has changed.
        """
        changes: list[BlockChange] = []
        for (group, _name, queue_id), offsets in taken.items():
            changes += self._queues.release(group, queue_id, offsets)
        return self._write(changes)

    def reset(self, group: str, name: bytes, queue_id: int, offset: int) -> int:
        """Let the group continue at this offset, with nothing in flight; returns the position to be confirmed."""
        low, high = self._store.reading.bounds(queue_id)
        target = min(max(offset, low), high)
        return self._write(self.leaving(group, queue_id), [offset_change(group, name.decode(), INDEX, target)])

    def overdue(self, now_ms: int, exists: Callable[[str], bool]) -> list[tuple[str, bytes]]:
        """(group, queue name) of some lite topics that are free again because the time of all they gave is over.

        The name is empty where there is nothing to give: what groups have that do not exist is done, and what is not
        confirmed yet is looked at again. A pop that found it so has spent its client's event.
        """
        found = []
        for group, queue_id in self._queues.take_due(now_ms, DUE_PER_PASS):
            name = self._store.state.queues.name(queue_id) or b""
            if (not name or not exists(group)) and not self._store.quarantined:
                name = b""
                try:
                    self._write(self.leaving(group, queue_id))
                except StoreError:
                    self._queues.postpone(group, queue_id, now_ms + RETRY_MS)
            elif self._is_unconfirmed(group, queue_id):
                name = b""
                self._queues.postpone(group, queue_id, now_ms + RETRY_MS)
            else:
                self._queues.postpone(group, queue_id, now_ms + RECHECK_MS)
            found.append((group, name))
        return found

    def _is_unconfirmed(self, group: str, queue_id: int) -> bool:
        """Whether the first message that a group has of a lite topic cannot be read yet."""
        batch = self.batch(group, queue_id)
        offset = next(iter(batch.times), None) if batch is not None else None
        return offset is not None and self._store.reading.record(queue_id, offset) is Absence.NOT_YET

    def leaving(self, group: str, queue_id: int) -> list[BlockChange]:
        """What changes when nothing of a queue is in flight any longer; `written` follows."""
        batch = self.batch(group, queue_id)
        return [] if batch is None else self._queues.release(group, queue_id, tuple(batch.times))

    def written(self, changes: Iterable[BlockChange]) -> None:
        """These changes are in the log."""
        for change in changes:
            self._queues.written(change)

    def _write(self, changes: Sequence[BlockChange], others: Sequence[StateChange] = ()) -> int:
        position = self._store.append_state([*others, *map(state_change, changes)])
        self.written(changes)
        return position

    def _lookup(self, key: bytes) -> bytes | None:
        return self.held.value(LITE_BATCH, key)

    def _read_next(self, delivery: LiteDelivery, room: int, bytes_max: int) -> None:
        """Neighbouring messages from the front on; unreadable ones before them are passed over."""
        high = self._store.reading.bounds(delivery.queue_id)[1]
        at = delivery.front
        while at < high:
            try:
                found = self._store.reading.read(delivery.queue_id, at, room, bytes_max)
            except UnreadableOffsets as error:
                self.passed_over[Absence.DAMAGED] += error.next_offset - at
                at = error.next_offset
                continue
            if found.status == OFFSET_TOO_SMALL:
                self.passed_over[Absence.GONE] += found.first_offset - at
                at = found.first_offset
                continue
            delivery.views = [RecordView(record) for record in found.records]
            delivery.offsets = [*range(at, at + len(delivery.views))]
            at += len(delivery.views)
            break
        delivery.moved, delivery.front = at > delivery.front, at
        delivery.times = [0] * len(delivery.offsets)


def state_change(change: BlockChange) -> StateChange:
    """The record of a change."""
    return StateChange(change.kind, change.key, change.value)


def expire(topics: LiteTopics, ownership: Ownership, now_ms: int) -> int:
    """Delete some of the lite topics whose time is over, with the offsets and check-points of their groups.

    Raises:
        StoreError: nothing has changed.
    """
    expired = topics.expired(now_ms)
    if not expired:
        return 0
    groups = {parent: topics.groups_of(parent) for _queue_id, _name, parent in expired}
    changes: list[StateChange] = []
    blocks: list[BlockChange] = []
    for queue_id, name, parent in expired:
        for group in groups[parent]:
            key = group_offset_key(group, name.decode(), INDEX)
            changes.append(StateChange(GROUP_OFFSET, key, None))
            blocks += ownership.leaving(group, queue_id)
    topics.delete(expired, [*changes, *map(state_change, blocks)])
    ownership.written(blocks)
    return len(expired)
