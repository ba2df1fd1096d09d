"""Gives every session with something to do its turn, without letting one of them keep the loop.

`wake` marks a session; at the end of the loop turn each marked session may deliver a bounded portion, and one that
could go on is marked for the next turn: in between the loop reads and writes sockets.
Invariant: a woken session is pumped exactly once in the next round, however often it was woken. Loop rule: on the
loop.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from remoting.transport.turn import soon
from runtime.logs import get_logger


class Pumped(Protocol):
    """A session that delivers when it is told to."""

    def pump(self) -> bool:
        """Deliver a portion; True when there is more that could go at once."""

    def failed(self) -> None:
        """Delivering raised: give the session up."""


class Pump:
    """The sessions that wait for their turn."""

    def __init__(self) -> None:
        self._ready: dict[Pumped, None] = {}
        self._more: dict[Pumped, None] = {}
        self._scheduled = False
        self._log = get_logger("proxy.pump")

    def wake(self, session: Pumped) -> None:
        """Let a session deliver in the next turn."""
        self._ready[session] = None
        if not self._scheduled:
            self._scheduled = True
            soon(self._run)

    def forget(self, session: Pumped) -> None:
        """The session has ended."""
        self._ready.pop(session, None)
        self._more.pop(session, None)

    def _run(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        for session in ready:
            try:
                more = session.pump()
            except Exception as error:  # noqa: BLE001 - one session's fault must not stop the others
                self._log.error("delivery_failed", error=repr(error), exc_info=error)
                session.failed()
                continue
            if more:
                if not self._more:
                    asyncio.get_running_loop().call_soon(self._go_on)
                self._more[session] = None

    def _go_on(self) -> None:
        more, self._more = self._more, {}
        for session in more:
            self.wake(session)
