"""Gives every session with something to do its turn, without letting one of them keep the loop.

`wake` marks a session; at the end of the loop turn each marked session may deliver a bounded portion. One that could
go on, or whose socket was full (`later`), is behind and has its portion in the next turn, whatever else wakes it: in
between the loop reads and writes sockets, and sessions that are not behind have theirs. When few have something to do
each may deliver several portions: else one that follows a thousand devices would fall behind them, because all of them
are read between two of its turns.
Invariant: a woken session is pumped exactly once in the next round, however often it was woken; one that is behind
once per turn of the loop. Loop rule: on the loop.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from remoting.transport.turn import soon
from runtime.logs import get_logger

PORTIONS_PER_TURN = 16
"""Portions shared by the sessions of one turn, each of which has one at least."""


class Pumped(Protocol):
    """A session that delivers when it is told to."""

    def pump(self, portions: int) -> bool:
        """Deliver at most so many portions; True when there is more that could go at once."""

    def failed(self) -> None:
        """Delivering raised: give the session up."""


class Pump:
    """The sessions that wait for their turn."""

    def __init__(self) -> None:
        self._ready: dict[Pumped, None] = {}
        self._behind: dict[Pumped, None] = {}
        self._scheduled = False
        self._log = get_logger("proxy.pump")

    def wake(self, session: Pumped) -> None:
        """Let a session deliver in the next turn; one that is behind has its turn coming."""
        if session in self._behind:
            return
        self._ready[session] = None
        if not self._scheduled:
            self._scheduled = True
            soon(self._run)

    def later(self, session: Pumped) -> None:
        """Let a session deliver in the next turn of the loop: it has a backlog."""
        if session in self._ready:
            return
        if not self._behind:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._behind[session] = None

    def forget(self, session: Pumped) -> None:
        """The session has ended."""
        self._ready.pop(session, None)
        self._behind.pop(session, None)

    def _run(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        portions = max(1, PORTIONS_PER_TURN // len(ready)) if ready else 1
        for session in ready:
            try:
                more = session.pump(portions)
            except Exception as error:  # noqa: BLE001 - one session's fault must not stop the others
                self._log.error("delivery_failed", error=repr(error), exc_info=error)
                session.failed()
                continue
            if more:
                self.later(session)

    def _go_on(self) -> None:
        behind, self._behind = self._behind, {}
        for session in behind:
            self.wake(session)
