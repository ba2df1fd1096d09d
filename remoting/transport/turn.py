"""Deferred callbacks of one loop turn: they run after the current callback, without another iteration of the loop.

A request inside one process is a chain of small steps (gather, hand over, append, confirm, hand back), none of which
may run inside the step before. With `call_soon`, every step costs a handle, an epoll and a wake-up; here they wait in a
list that a single loop callback runs, round by round: callbacks added in a round run in the next one. `at_end`
callbacks, such as writing output, run once no round adds any more. A loop callback that causes much of this work calls
`begin` and `run` itself, which saves even the single callback.

Invariant: `soon` never runs the callback inside its caller, callbacks run in the order of the calls, and one that
raises is reported to the loop and stops no other. After `ROUNDS_MAX` rounds the rest waits for the next iteration of
the loop, so that an endless chain starves no socket; `at_end` callbacks have run by then. Loop rule: call on the loop's
thread; each loop has its own turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident

ROUNDS_MAX = 32
"""Rounds of one loop turn; a message takes about ten from its socket to the last subscriber's."""

Due = Callable[[], object]


class Turn:
    """The deferred callbacks of one loop."""

    __slots__ = ("_asked", "_begun", "_due", "_last", "loop", "thread")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.thread = get_ident()
        """Identifier of the loop's thread."""
        self._due: list[Due] = []
        self._last: list[Due] = []
        self._asked = False
        self._begun = False

    def soon(self, callback: Due) -> None:
        """Run the callback in the next round."""
        self._due.append(callback)
        if not self._begun and not self._asked:
            self._ask()

    def at_end(self, callback: Due) -> None:
        """Run the callback when no others are left in this turn; callbacks it adds still belong to the turn."""
        self._last.append(callback)
        if not self._begun and not self._asked:
            self._ask()

    def begin(self) -> None:
        """Schedule nothing with the loop: the caller is a loop callback and calls `run` before it returns."""
        global _running  # noqa: PLW0603 - see below
        self._begun = True
        _running = self

    def run(self) -> None:
        """Run the callbacks, round by round."""
        self.begin()
        try:
            for _ in range(ROUNDS_MAX):
                if self._due:
                    self._round(self._take_due())
                elif self._last:
                    self._round(self._take_last())
                else:
                    return
            self._round(self._take_last())
        finally:
            self._release()

    def _round(self, round_: list[Due]) -> None:
        for callback in round_:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - one callback's fault must not lose the others
                self.loop.call_exception_handler(
                    {"message": f"{callback!r} failed at the end of a loop turn", "exception": error}
                )

    def _take_due(self) -> list[Due]:
        due, self._due = self._due, []
        return due

    def _take_last(self) -> list[Due]:
        last, self._last = self._last, []
        return last

    def _ask(self) -> None:
        self._asked = True
        self.loop.call_soon(self._called)

    def _called(self) -> None:
        self._asked = False
        self.run()

    def _release(self) -> None:
        global _running  # noqa: PLW0603 - see below
        self._begun = False
        _running = None
        if (self._due or self._last) and not self._asked:
            self._ask()


_latest: Turn | None = None
"""A one-entry cache: nearly every process has one loop."""

_running: Turn | None = None
"""The turn being run (of several loops in threads, the one that began last): callers inside it need not look up their
loop, which is a system call."""


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return the turn of this loop, which runs in this thread."""
    global _latest  # noqa: PLW0603 - see above
    turn = _latest
    if turn is None or turn.loop is not loop:
        turn = _latest = Turn(loop)
    return turn


def soon(callback: Due) -> None:
    """Run the callback in the next round of the running loop's turn."""
    turn = _running
    if turn is None or turn.thread != get_ident():
        turn = turn_of(asyncio.get_running_loop())
    turn.soon(callback)
