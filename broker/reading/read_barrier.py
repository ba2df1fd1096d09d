"""A master's proof, before it sends a reader back, that no other master has shown more.

    an offset behind the end -> a record that changes nothing is appended -> confirmed: the end here is the end
                                                                          -> not within WAIT_S: nobody knows

A master that is cut off from its group learns of its successor late, and where there are controllers not before the cut
ends. A reader that was at the successor knows offsets which this log does not have. So the master appends a record and
waits until it is confirmed: the replicas that confirm it acknowledged it to this master after the question came, and a
successor would need at least one of them to be elected or to confirm anything. This is the read index of Raft's
dissertation, section 6.4, with a record in the place of a round of heartbeats, so that every rule that confirms, a
majority's or that of a set in sync, holds for it. A rule that lets the master confirm alone proves nothing, as it
promises nothing.

One record serves all who asked before it was appended; those who ask later share the next one. WAITERS_MAX may wait;
one more is told at once that nobody knows. Invariant: `then(True)` is called only after the confirmation of a record
that was appended behind the question, and `then` exactly once. Pure: the timer comes from outside; loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from broker.store.errors import StoreError
from broker.store.state.state_kinds import MASTER_EPOCH, StateChange

WAIT_S = 1.0
"""How long a question waits for the proof."""
WAITERS_MAX = 10_000

PROVEN, LATE, GIVEN_UP, FULL = "proven", "late", "given_up", "full"
"""What becomes of a question: proof; none within WAIT_S; none from this master, whose log confirms nothing more; none
because too many wait."""

Proved = Callable[[bool], None]
"""Called with True when there is proof, with False when nobody knows."""


class ConfirmedLog(Protocol):
    """The log that a master writes, as `LogStore` is one."""

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append changes of durable state as one record; its end. Raises StoreError."""
        ...

    def when_confirmed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        """Call back once everything below `position` is confirmed, or with an error when it never will be."""
        ...


class _Asker:
    """One question, answered once."""

    __slots__ = ("then",)

    def __init__(self, then: Proved) -> None:
        self.then: Proved | None = then


def _nothing(_outcome: str) -> None:
    """For who counts nothing."""


class ReadBarrier:
    """Of one master's log."""

    def __init__(
        self,
        log: ConfirmedLog,
        later: Callable[[float, Callable[[], None]], object],
        count: Callable[[str], None] = _nothing,
    ) -> None:
        """`later` calls a function after so many seconds, `count` is called with the outcome of each question."""
        self._log, self._later, self._count = log, later, count
        self._asked: list[_Asker] = []
        """Those for whom the next record is to be appended."""
        self._under_way: list[_Asker] = []
        """Those whose record is not confirmed yet."""

    def wait(self, then: Proved) -> None:
        """Call `then` when it is proven, or certain not to be soon, that no other master had shown more until now."""
        if len(self._asked) + len(self._under_way) >= WAITERS_MAX:
            self._answer(_Asker(then), FULL)
            return
        waiter = _Asker(then)
        self._asked.append(waiter)
        self._later(WAIT_S, partial(self._answer, waiter, LATE))
        if not self._under_way:
            self._append()

    def _append(self) -> None:
        self._under_way, self._asked = self._asked, []
        try:
            end = self._log.append_state([StateChange(MASTER_EPOCH, b"", None)])
        except StoreError as error:
            self._answered(error)
        else:
            self._log.when_confirmed(end, self._answered)

    def _answered(self, error: Exception | None) -> None:
        answered, self._under_way = self._under_way, []
        if error is not None:  # nothing more is confirmed here
            answered, self._asked = answered + self._asked, []
        for waiter in answered:
            self._answer(waiter, PROVEN if error is None else GIVEN_UP)
        if self._asked and not self._under_way:
            self._append()

    def _answer(self, asker: _Asker, outcome: str) -> None:
        """Tell who asked, the first time."""
        then, asker.then = asker.then, None
        if then is not None:
            self._count(outcome)
            then(outcome == PROVEN)


def unneeded(then: Proved) -> None:
    """For a broker without a group, and for readers who know that a replica may be behind."""
    then(True)


def never(then: Proved) -> None:
    """For a replica that sends nobody back: it may know less than its master."""
    then(False)
