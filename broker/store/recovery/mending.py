"""What damage took from the state, and the records that restore it before anything else is appended.

- State that a snapshot still has and whose record is damaged is appended again; a damaged retained message is deleted.
- A queue that has records but whose creation is nowhere gets a placeholder name, and its id never another queue.
- Ids that may have been given out in the damaged bytes are skipped.
- A queue whose last offsets were in the damage goes on where its confirmed end was, as far as the former tail file
  tells; the offsets between are a hole, so that no offset a consumer has seen comes back for another message.

Invariant: after these changes are in the log, the log alone leads to the same names and offsets. Thread rule: before
the first append.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from broker.store.index.former_tail import FormerTail
from broker.store.index.queue_index import QueueIndex
from broker.store.recovery.replayer import Gap, Replayer
from broker.store.state import state_kinds
from broker.store.state.queue_registry import queue_value
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables
from remoting.native.contracts import NEXT

PLACEHOLDER = b"%%DAMAGED%%%d"
"""Name of a queue whose own name was lost."""
CREATION_BYTES_MIN = 25
"""The least a queue's creation takes in a control record."""
SKIPPED_IDS_MAX = 100_000
"""Most queue ids skipped for one start's damage."""


class NamesSeen:
    """Notes which queue ids the replay named; an id that is not among them and was not known before lost its name."""

    def __init__(self, tables: StateTables) -> None:
        self.known_before = tables.queues.next_id
        self.ids: set[int] = set()
        tables.subscribe(state_kinds.QUEUE, self._changed)

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if name and value is not None:
            self.ids.add(int.from_bytes(value[:4], "little"))


def mend(
    index: QueueIndex,
    tables: StateTables,
    replayer: Replayer,
    seen: NamesSeen | None,
    gaps: Sequence[Gap],
    begin: int,
    former: FormerTail,
) -> list[StateChange]:
    """Fill in holes at the ends of queues and return what must be said in the log, which begins at `begin`, of `gaps`.

    `seen` is None when the replay passed none of it.
    """
    # What was said below the begin of the log had been said again before that went, but in the damage.
    changes = [change for gap in [(0, begin), *gaps] for change in _written_in(tables, index, gap)]
    nameless = [] if seen is None else _nameless(index, tables, seen, gaps[0][0])
    changes += [_queue(PLACEHOLDER % queue, queue, index.next_offset(queue)) for queue in nameless]
    for queue, confirmed in former.confirmed_beyond(index.tail.queue_rows[: index.queue_count, NEXT]):
        name, newest = tables.queues.name(queue), _newest_position(index, queue)
        if name is not None and newest < gaps[-1][1]:  # a run may know records that lie in the damage
            replayer.add_hole(queue, confirmed, max(newest, gaps[-1][0]))
            changes.append(_queue(name, queue, confirmed))
    lost_bytes = sum(end - start for start, end in gaps)
    skipped = min(lost_bytes // CREATION_BYTES_MIN, SKIPPED_IDS_MAX)
    highest = max([tables.queues.next_id, *(queue + 1 for queue in nameless)])
    changes.append(_queue(b"", highest + skipped, 0))
    return changes


def _written_in(tables: StateTables, index: QueueIndex, gap: Gap) -> Iterator[StateChange]:
    """Yield the state whose records stand in a stretch that cannot be read any more."""
    for ids in tables.queues.older_than(gap[1]):
        for queue in ids:
            name = tables.queues.name(queue)
            if name is not None and tables.queues.position(queue) >= gap[0]:
                yield _queue(name, queue, index.next_offset(queue))
    for entries in tables.older_than(gap[1]):
        for kind, key, value, said in entries:
            if said >= gap[0] and kind != state_kinds.QUEUE:
                yield StateChange(kind, key, None if kind == state_kinds.RETAINED else value)


def _newest_position(index: QueueIndex, queue: int) -> int:
    """Return where the queue's newest record stands, -1 when it holds none."""
    following = index.next_offset(queue)
    if index.min_offset(queue) >= following:
        return -1
    return int(index.read(queue, following - 1, 1).positions[-1])


def _queue(name: bytes, queue: int, next_offset: int) -> StateChange:
    return StateChange(state_kinds.QUEUE, name, queue_value(queue, next_offset))


def _nameless(index: QueueIndex, tables: StateTables, seen: NamesSeen, first_damage: int) -> list[int]:
    """Return ids that nothing has named and that have records behind the damage, so that it took their name.

    The name of a queue with older records too was said again there, before what said it first expired.
    """
    following = index.tail.queue_rows[: index.queue_count, NEXT]
    found = []
    for queue in np.flatnonzero(following[seen.known_before :] > 0).tolist():
        queue += seen.known_before
        if queue in seen.ids or tables.queues.exists(queue):
            continue
        if _newest_position(index, queue) >= first_damage:
            found.append(queue)
    return found


def floors_or_holes(index: QueueIndex, tables: StateTables, replayer: Replayer, damage: int) -> None:
    """Let queues go on where the state says: with a hole when they hold records, from there on when they hold none."""
    said = tables.queues.next_offsets()
    index.grow(len(said))
    for queue in np.flatnonzero(index.tail.queue_rows[: len(said), NEXT] < said).tolist():
        if index.min_offset(queue) < index.next_offset(queue):
            replayer.add_hole(queue, int(said[queue]), max(_newest_position(index, queue), damage))
    index.set_floors(said)
