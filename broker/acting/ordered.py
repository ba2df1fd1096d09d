"""Messages that groups consume in order, while a replica stands in for the master.

    batch of the log, links of the journal -> those in flight -> free?  -> given again, or what is behind them

As at the master, a group gets nothing of a queue as long as it has messages of it, unless their time is over or the
same attempt asks again: then it gets them again. That is kept as another time for the same message (POPS), so
the next master knows whose it is. A queue waits for a master where messages are in flight without order, or were given
here without order, and where an operator has set the group's offset back over its batch. As without order, a batch that
may be lost again is gone on from all the same.

Invariant: of a queue in order nothing is given that is behind a message which is in flight. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.acting.given import GivenMessages, PopKey
from broker.acting.pops import ActingPops
from broker.groups.groups import group_offset_key, offset_in
from broker.pop.check_points import Owned, queue_key
from broker.pop.ordered import decode_batch
from broker.pop.popping import Place, PopAsk
from broker.store.state import state_kinds

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

ENDS_MAX = 10_000
"""Groups and topics of which it is known when somebody who waits may get messages again; then all begin anew, and who
waits asks again when its own time is over."""


@dataclass(frozen=True, slots=True)
class MessageInOrder:
    """One message that a group has in order."""

    key: PopKey
    base: Owned
    """Under which ownership it was given first."""
    now: Owned
    times: int
    """Deliveries before the last one."""


@dataclass(slots=True)
class QueueInOrder:
    """What a group has of a queue."""

    entries: list[MessageInOrder] = field(default_factory=list)
    """Ascending by offset."""
    attempt: str = ""

    def is_free(self, attempt: str, now_ms: int) -> bool:
        """Whether this attempt may have all of it now."""
        return self._is_repeat(attempt) or all(sum(entry.now) <= now_ms for entry in self.entries)

    def times(self, entry: MessageInOrder, attempt: str) -> int:
        """Deliveries of a message before the one to this attempt, as far as they are known here: those of the log, and
        one of this replica."""
        return entry.times + (entry.now != entry.base) + (not self._is_repeat(attempt))

    def _is_repeat(self, attempt: str) -> bool:
        return bool(attempt) and attempt == self.attempt


class ActingOrder:
    """Which queues in order are open to a pop."""

    def __init__(self, given: GivenMessages, pops: ActingPops) -> None:
        """`given`: what this replica gave; `pops`: what became of it, and of what the master gave."""
        self._given, self._pops = given, pops
        self._ends: dict[tuple[str, str], int] = {}

    def opened(self, store: LogStore, ask: PopAsk, place: Place, now_ms: int) -> QueueInOrder | None:
        """What the group has of a queue that is open to this pop, perhaps nothing; None for a closed one."""
        topic, index, queue_id = place
        queue, table = (ask.group, topic, index), store.state.check_points
        if self._given.is_ordered(queue) is False or table.in_flight(queue_key(ask.group, queue_id)):
            return None
        found = self._in_flight(store, ask.group, place)
        if found is None:
            return None
        if found.is_free(ask.attempt.decode(), now_ms) and all(entry.now[0] <= now_ms for entry in found.entries):
            return found
        end_ms = max(sum(entry.now) for entry in found.entries)
        if len(self._ends) >= ENDS_MAX:
            self._ends.clear()
        about = (ask.group, ask.topic)
        self._ends[about] = min(end_ms, self._ends.get(about, end_ms))
        return None

    def is_repeat(self, store: LogStore, ask: PopAsk, place: Place) -> bool:
        """Whether the attempt had messages of a queue already."""
        topic, index, queue_id = place
        attempt = self._given.attempt((ask.group, topic, index))
        if attempt is None:
            found = store.state.get(state_kinds.ORDERED_BATCH, queue_key(ask.group, queue_id))
            return found is not None and decode_batch(found[0]).is_repeat(ask.attempt)
        return bool(attempt) and attempt == ask.attempt.decode()

    def due(self, now_ms: int) -> Iterable[tuple[str, str]]:
        """(group, topic) of those whose messages may be given again by now; each once."""
        found = [about for about, end_ms in self._ends.items() if end_ms <= now_ms]
        for about in found:
            del self._ends[about]
        return found

    def _in_flight(self, store: LogStore, group: str, place: Place) -> QueueInOrder | None:
        """What the group has of a queue; None where that waits for a master."""
        topic, index, queue_id = place
        queue, low = (group, topic, index), store.reading.bounds(queue_id)[0]
        value = store.state.get(state_kinds.ORDERED_BATCH, queue_key(group, queue_id))
        batch = None if value is None else decode_batch(value[0])
        if batch is not None and value is not None:
            moved = store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index))
            is_behind = moved is not None and offset_in(moved[0]) > batch.entries[-1][0]
            if not is_behind:
                return None
        times = {} if batch is None else batch.times
        attempt = self._given.attempt(queue)
        if attempt is None:
            attempt = "" if batch is None else batch.attempt.decode()
        found = QueueInOrder(attempt=attempt)
        for offset in sorted({*times, *self._given.open(queue)}):
            key = (group, topic, index, offset)
            base, now = self._pops.state(store, key, queue_id)
            if base is not None and now is not None and offset >= low:
                found.entries.append(MessageInOrder(key, base, now, times.get(offset, 0)))
        return found
