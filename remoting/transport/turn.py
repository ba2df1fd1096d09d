"""What is due at the end of this loop turn: callbacks that run after the current one, without a new round of the loop.

A request inside one process is a chain of small steps (gather, hand over, append, confirm, hand back), each of which
must not run inside the step before. Asked of the loop, every step costs a handle, an epoll and a wake-up; here they
wait in one list that a single loop callback works off, round by round: what a round asks for runs in the next round.

Invariant: `soon` never runs the callback inside its caller, callbacks run in the order of the calls, and one that
raises is reported to the loop and stops no other. After `ROUNDS_MAX` rounds the loop has its turn, so that a chain
without an end starves no socket. Loop rule: call on the loop's thread; each loop has its own list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

ROUNDS_MAX = 32
"""Rounds of one loop turn; a message takes about ten from its socket to the last subscriber's."""


class _Turn:
    """The callbacks of one loop."""

    __slots__ = ("due", "loop", "scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.scheduled = False

    def run(self) -> None:
        """Work off what is due, round by round."""
        for _ in range(ROUNDS_MAX):
            round_, self.due = self.due, []
            for callback, arguments in round_:
                try:
                    callback(*arguments)
                except Exception as error:  # noqa: BLE001 - one callback's fault must not lose the others
                    self.loop.call_exception_handler(
                        {"message": f"{callback!r} failed at the end of a loop turn", "exception": error}
                    )
            if not self.due:
                self.scheduled = False
                return
        self.loop.call_soon(self.run)


_latest: _Turn | None = None


def soon(callback: Callable[..., object], *arguments: Any) -> None:
    """Call back at the end of this turn of the running loop, in the next round of whatever is due then."""
    global _latest  # noqa: PLW0603 - a one-entry cache: nearly every process has one loop
    loop = asyncio.get_running_loop()
    turn = _latest
    if turn is None or turn.loop is not loop:
        turn = _latest = _Turn(loop)
    turn.due.append((callback, arguments))
    if not turn.scheduled:
        turn.scheduled = True
        loop.call_soon(turn.run)
