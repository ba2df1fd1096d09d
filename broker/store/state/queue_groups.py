"""Groups of queues with a retention of their own, and the log position below which each group shows nothing.

The log as a whole has one retention, and its files go oldest first. A group may keep less: then its queues begin at a
later position than the log does. It may keep more: then files that hold its messages stay. What a group is, the owner
of the store says at each start; how far it has expired is durable state (RETENTION: name -> position i64), so an offset
that was hidden once is never shown again, whatever becomes of the rule.

    group number u32 per queue id: 0 belongs to no group

Invariant: the position of a group only moves forward, and is at most what was confirmed. Thread rule: loop thread.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker.store.state.state_kinds import RETENTION
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables

_POSITION = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What a group keeps; age and size are those of the messages in `queues`, which hold each message of it once."""

    queues: tuple[int, ...]
    age_ms: int | None = None
    """None: as long as the log does. 0: for ever, as far as the log's size limit lets it."""
    size_bytes: int = 0
    """0: no limit."""


class QueueGroups:
    """All groups, by name; `changed` is called when the begin of queues moves."""

    def __init__(self, tables: StateTables, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.rules: dict[bytes, GroupRule] = {}
        self._numbers: dict[bytes, int] = {}
        self._begins = [0]
        self._of_queue = array("I")
        for name, (value, _) in tables.items(RETENTION):
            self._begins[self._number(name)] = _POSITION.unpack(value)[0]

    def _number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._begins)
            self._begins.append(0)
        return number

    def define(self, name: bytes, rule: GroupRule) -> None:
        """Make a group or change its rule; `join` says which queues it is about."""
        self._number(name)
        self.rules[name] = rule

    def forget(self, name: bytes) -> None:
        """Let a group expire with the log from now on; what it hides stays hidden."""
        self.rules.pop(name, None)

    def join(self, name: bytes, queues: Iterable[int]) -> None:
        """Let queues belong to a group; they leave the one they were in."""
        number = self._number(name)
        for queue in queues:
            missing = queue + 1 - len(self._of_queue)
            if missing > 0:
                self._of_queue.frombytes(bytes(4 * (missing + len(self._of_queue) // 2)))
            self._of_queue[queue] = number
        if self._begins[number]:
            self._changed()

    def names(self) -> list[bytes]:
        """Return the groups that were ever said to have expired, or have a rule."""
        return list(self._numbers)

    def begin(self, name: bytes) -> int:
        """Return the log position below which the group shows nothing."""
        return self._begins[self._numbers.get(name, 0)]

    def begin_of(self, queue: int) -> int:
        """Return the log position below which a queue shows nothing, as far as groups say; 0 for no group."""
        return self._begins[self._of_queue[queue]] if queue < len(self._of_queue) else 0

    def move(self, name: bytes, begin: int) -> None:
        """Hide what lies below `begin`; the record that says so is durable."""
        number = self._number(name)
        self._begins[number] = max(self._begins[number], begin)
        self._changed()

    def outlived(self, log_begin: int) -> list[StateChange]:
        """Return the deletions of what was said about groups without a rule that hide nothing any more, each once."""
        names = [
            name
            for name, number in self._numbers.items()
            if 0 < self._begins[number] <= log_begin and name not in self.rules
        ]
        for name in names:
            self._begins[self._numbers[name]] = 0
        return [StateChange(RETENTION, name, None) for name in names]


def expiry_change(name: bytes, begin: int) -> StateChange:
    """Return the change that says how far a group has expired."""
    return StateChange(RETENTION, name, _POSITION.pack(begin))
