"""Is a history of one register linearizable?

It is if there is one order of its operations, each taking effect at one moment between its call and its answer, in
which every read finds what was written last.

The search goes through the calls and answers in time and keeps every state the register may be in: its value, and which
of the operations in progress have taken effect (Wing and Gong, with the states of Lowe's just-in-time order). A write
of unknown outcome may take effect at any time from its call on, or never; an unanswered read is ignored.
Invariant: a history that is refused has no such order. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STATES_MAX = 200_000
"""Largest number of states searched for one answer; a history that needs more is reported as undecided."""
UNKNOWN = math.inf
"""When a write of unknown outcome was answered."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A read or a write of one register, with the times of its call and its answer."""

    client: str
    called: float
    answered: float
    value: str | None
    """What was written or read; None: nothing was ever written."""
    is_write: bool

    def __str__(self) -> str:
        done = "wrote" if self.is_write else "read"
        until = "never answered" if self.answered == UNKNOWN else f"answered at {self.answered:.4f} s"
        return f"{self.client} {done} {self.value}, called at {self.called:.4f} s, {until}"


class Undecided(Exception):
    """The history has too many operations of unknown outcome at once."""


State = tuple[str | None, frozenset[int]]
"""The value, and which of the operations under way have taken effect."""


def first_impossible(history: Sequence[Operation], initial: str | None = None) -> Operation | None:
    """The operation at whose answer no order is left; None: the history is linearizable. Raises Undecided."""
    operations = _relevant(history)
    last_read = {each.value: each.answered for each in sorted(_reads(operations), key=lambda each: each.answered)}
    search = _Search(operations, initial)
    for at, is_answer, number in _moments(operations):
        search.forget({each: last_read[operations[each].value] for each in search.unanswered}, at)
        if not is_answer:
            search.begin(number)
        elif not search.end(number):
            return operations[number]
    return None


def _reads(history: Iterable[Operation]) -> Iterable[Operation]:
    return (each for each in history if not each.is_write)


def _relevant(history: Sequence[Operation]) -> list[Operation]:
    """Without reads that returned nothing, and without writes of unknown outcome whose value was not read."""
    seen = {each.value for each in _reads(history) if each.answered != UNKNOWN}
    return [each for each in history if each.answered != UNKNOWN or (each.is_write and each.value in seen)]


def _moments(operations: Sequence[Operation]) -> list[tuple[float, bool, int]]:
    """Calls and answers by time, calls first, so that events of one moment overlap."""
    calls = [(each.called, False, number) for number, each in enumerate(operations)]
    answers = [(each.answered, True, number) for number, each in enumerate(operations) if each.answered != UNKNOWN]
    return sorted([*calls, *answers])


class _Search:
    def __init__(self, operations: Sequence[Operation], initial: str | None) -> None:
        self._operations = operations
        self._open: set[int] = set()
        self._states: set[State] = {(initial, frozenset())}
        self.unanswered: set[int] = set()
        """Writes of unknown outcome that may still take effect in a way that matters."""

    def begin(self, number: int) -> None:
        """An operation is called."""
        self._open.add(number)
        if self._operations[number].answered == UNKNOWN:
            self.unanswered.add(number)

    def end(self, number: int) -> bool:
        """An operation is answered, so it has taken effect; returns whether that is possible."""
        todo = [self._with_reads(*state) for state in self._states]
        looked_at, left = set(todo), set()
        while todo:
            value, done = todo.pop()
            if number in done:
                left.add((value, done - {number}))
                continue
            for each in self._open - done:
                if self._operations[each].is_write:
                    further = self._with_reads(self._operations[each].value, done | {each})
                    if further not in looked_at:
                        looked_at.add(further)
                        todo.append(further)
            if len(looked_at) > STATES_MAX:
                raise Undecided(f"more than {STATES_MAX} states at: {self._operations[number]}")
        self._open.discard(number)
        self._states = left
        return bool(left)

    def forget(self, last_read: dict[int, float], now: float) -> None:
        """Drop writes of unknown outcome whose value is not read later: they change nothing any more."""
        gone = frozenset(number for number, until in last_read.items() if until < now)
        if gone:
            self.unanswered -= gone
            self._open -= gone
            self._states = {(value, done - gone) for value, done in self._states}

    def _with_reads(self, value: str | None, done: frozenset[int]) -> State:
        """Reads in progress that find their value take effect at once: that never makes anything impossible."""
        found = (each for each in self._open - done if not self._operations[each].is_write)
        return value, done.union(each for each in found if self._operations[each].value == value)
