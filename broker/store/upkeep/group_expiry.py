"""Finds out how far each group of queues has expired, a bounded piece per step.

By age: store times never fall along the log, so the first message of each counted queue that is young enough is found
by leaps from the oldest one on, and the lowest of their positions is where the group begins. By size: the sizes of the
entries are added up as they are confirmed and taken off as they go, oldest first; after a start they are added up anew,
and until that is done the sum is too low, so that nothing goes too early.

The new position is first said in the log and taken in once that record is confirmed. Invariant: nothing that the rule
keeps is hidden; `held` names the lowest position that a group with a longer age than the log's still needs.
Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broker.store.errors import StoreFull
from broker.store.index.entries import Entries
from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog
from broker.store.state.queue_groups import GroupRule, QueueGroups, expiry_change
from broker.store.state.state_log import StateChange
from remoting.protocol.records.record import HEADER

GROUPS_PER_STEP = 32
ENTRIES_PER_STEP = 65_536
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1_000, 60_000
AGE_SHARE = 100
"""A group is looked at when a hundredth of its age has passed, within the two bounds above."""
NEVER = 2**62
AppendState = Callable[[Sequence[StateChange]], int]


@dataclass(slots=True)
class Counted:
    """What is added up of a group: [low, high) offsets per queue and the bytes of their records."""

    spans: dict[int, list[int]] = field(default_factory=dict)
    total_bytes: int = 0


@dataclass(slots=True)
class Found:
    """What a look at a group found out: where it begins and why, and from where on it needs the log."""

    begin: int
    reason: str
    held: int


class GroupExpiry:
    """Moves groups on; `append` says it in the log."""

    def __init__(
        self,
        groups: QueueGroups,
        index: QueueIndex,
        log: CommitLog,
        append: AppendState,
        confirmed: Callable[[], int],
        *,
        age_ms: int,
    ) -> None:
        self._groups = groups
        self._index = index
        self._log = log
        self._append = append
        self._confirmed = confirmed
        self._age_ms = age_ms
        self._due_ms: dict[bytes, int] = {}
        self._held: dict[bytes, int] = {}
        self._counted: dict[bytes, Counted] = {}
        self._said: list[tuple[int, bytes, int, str]] = []
        self.hidden_total = {"age": 0, "size": 0}
        """Messages hidden by the rules of groups, by reason."""

    def step(self, now_ms: int) -> None:
        """Take in what was confirmed, and look at the groups that are due."""
        self._take_in()
        rules = self._groups.rules
        due = [name for name in rules if self._due_ms.get(name, 0) <= now_ms][:GROUPS_PER_STEP]
        moved = []
        for name in due:
            rule = rules[name]
            self._due_ms[name] = now_ms + interval_ms(rule)
            found = self._expired(name, rule, now_ms)
            self._held[name] = found.held
            if found.begin > self._groups.begin(name) and found.begin > self._log.begin:
                moved.append((name, found))
        changes = [expiry_change(name, found.begin) for name, found in moved] + self._groups.outlived(self._log.begin)
        if changes:
            try:
                end = self._append(changes)
            except StoreFull:  # nothing is lost: they are looked at again
                self._counted.clear()
                return
            self._said += [(end, name, found.begin, found.reason) for name, found in moved]

    def held(self) -> int:
        """Return the lowest log position that a group needs although the log's own age would let it go."""
        if not self._age_ms:
            return NEVER
        rules = self._groups.rules.items()
        return min((self._held.get(name, 0) for name, rule in rules if self._keeps_longer(rule)), default=NEVER)

    def _keeps_longer(self, rule: GroupRule) -> bool:
        return rule.age_ms is not None and (rule.age_ms == 0 or rule.age_ms > self._age_ms)

    def _take_in(self) -> None:
        """Hide what is confirmed to be hidden, and count it."""
        confirmed = self._confirmed()
        ready = [item for item in self._said if item[0] <= confirmed]
        if not ready:
            return
        self._said = self._said[len(ready) :]
        for _, name, begin, reason in ready:
            rule = self._groups.rules.get(name)
            queues = rule.queues if rule is not None else ()
            before = [self._index.min_offset(queue) for queue in queues]
            self._groups.move(name, begin)
            after = [self._index.min_offset(queue) for queue in queues]
            self.hidden_total[reason] += sum(after) - sum(before)

    def _expired(self, name: bytes, rule: GroupRule, now_ms: int) -> Found:
        begin, reason, held = 0, "age", NEVER
        if rule.age_ms:
            begin, held = self._young(rule, now_ms - rule.age_ms)
        elif rule.age_ms == 0:
            _, held = self._young(rule, -NEVER)
        if rule.size_bytes:
            cut = self._fitting(name, rule)
            if cut > begin:
                begin, reason = cut, "size"
        return Found(begin, reason, max(held, begin))

    # -- by age

    def _young(self, rule: GroupRule, oldest_ms: int) -> tuple[int, int]:
        """Return (where the group begins, 0 if nothing is too old; where its first young message lies or will lie)."""
        held, hides = self._confirmed(), False
        for queue in rule.queues:
            low, high = self._index.min_offset(queue), self._index.confirmed_end(queue)
            offset = self._first_since(queue, low, high, oldest_ms)
            hides |= offset > low
            if offset < high:
                held = min(held, int(self._index.read(queue, offset, 1).positions[0]))
        return held if hides else 0, held

    def _first_since(self, queue: int, low: int, high: int, oldest_ms: int) -> int:
        """Return the first offset in [low, high] stored at or after `oldest_ms`: by leaps, then by halves."""
        leap = 1
        while low < high and self._stored_ms(queue, low, high) < oldest_ms:
            low += 1
            if low + leap >= high or self._stored_ms(queue, low + leap, high) >= oldest_ms:
                break
            low, leap = low + leap, 2 * leap
        high = min(high, low + leap)
        while low < high:
            middle = (low + high) // 2
            if self._stored_ms(queue, middle, high) < oldest_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, queue: int, offset: int, high: int) -> int:
        """When the message at `offset` was stored; of a hole, what follows it was."""
        while offset < high:
            entry = self._index.read(queue, offset, 1)
            if not len(entry):
                break
            if entry.sizes[0]:
                head = self._log.view(int(entry.positions[0]), HEADER.size)
                return NEVER if head is None else int(HEADER.unpack_from(head, 0)[6])
            offset = entry.end
        return NEVER

    # -- by size

    def _fitting(self, name: bytes, rule: GroupRule) -> int:
        """Return the position from which on the group is not larger than its rule, 0 when it is not."""
        counted = self._counted.get(name)
        if counted is None or set(counted.spans) != set(rule.queues) or not self._follow(counted):
            counted = self._counted[name] = Counted({
                queue: [self._index.min_offset(queue)] * 2 for queue in rule.queues
            })  # fmt: skip
        for queue, span in counted.spans.items():
            wanted = min(ENTRIES_PER_STEP, self._index.confirmed_end(queue) - span[1])
            if wanted > 0:
                entries = self._index.read(queue, span[1], wanted)
                counted.total_bytes += int(entries.sizes.sum(dtype=np.int64))
                span[1] = entries.end
        excess = counted.total_bytes - rule.size_bytes
        return self._cut(counted, excess) if excess > 0 else 0

    def _follow(self, counted: Counted) -> bool:
        """Take off what has gone by itself; False when the index no longer says how large that was."""
        for queue, span in counted.spans.items():
            low = self._index.min_offset(queue)
            if low > span[0]:
                gone = self._index.read(queue, span[0], min(low, span[1]) - span[0])
                if low > span[1] or not len(gone) or gone.offsets[0] != span[0] or gone.end != low:
                    return False
                counted.total_bytes -= int(gone.sizes.sum(dtype=np.int64))
                span[0] = low
        return True

    def _cut(self, counted: Counted, excess: int) -> int:
        """Take the oldest entries off until `excess` bytes are gone; return the position behind them."""
        parts: dict[int, Entries] = {}
        known = NEVER
        for queue, (low, high) in counted.spans.items():
            if high > low:
                entries = parts[queue] = self._index.read(queue, low, min(high - low, ENTRIES_PER_STEP))
                if entries.end < high:
                    known = min(known, int(entries.positions[-1]))
        positions: Any = np.concatenate([part.positions for part in parts.values()])
        sizes: Any = np.concatenate([part.sizes for part in parts.values()]).astype(np.int64)
        order = positions.argsort(kind="stable")
        last = int(sizes[order].cumsum().searchsorted(excess))
        begin = int(positions[order[last]]) + 1 if last < len(order) else known
        begin = min(begin, known, int(positions.max()) + 1)
        for queue, part in parts.items():
            gone = int(part.positions.searchsorted(begin))
            counted.total_bytes -= int(part.sizes[:gone].sum(dtype=np.int64))
            counted.spans[queue][0] = int(part.offsets[gone]) if gone < len(part) else part.end
        return begin


def interval_ms(rule: GroupRule) -> int:
    """Return how long to wait between two looks at a group."""
    if rule.size_bytes or not rule.age_ms:
        return INTERVAL_MS_MIN
    return min(max(rule.age_ms // AGE_SHARE, INTERVAL_MS_MIN), INTERVAL_MS_MAX)
