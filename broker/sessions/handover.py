"""A session is taken over while another proxy holds it: that one hands in how far the client has come first.

    SESSION_OPEN -> SESSION_FENCED (hand over) to the holder -> its SESSION_CLOSE -> the session is opened and answered

So the next proxy repeats exactly what was in flight, under its packet ids. A holder that does not answer within
`HANDOVER_MS`, or is gone, hands in nothing: the session is taken from it as it stands in the log.
Invariant: every SESSION_OPEN that waits is answered once, in the order of arrival per client id. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from remoting.protocol.bodies.session_body import SessionFenced, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.sessions.client_session import ClientSession

HANDOVER_MS = 1_000
"""How long the holder of a session may take to hand it in."""


class Handovers:
    """SESSION_OPENs that wait for a holder, by client id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def ask(self, session: ClientSession, proceed: Callable[[], None]) -> None:
        """Have the session's holder hand it in, then call `proceed`."""
        client_id = session.client_id
        waiting = self._waiting.setdefault(client_id, [])
        waiting.append(proceed)
        if len(waiting) == 1:
            loop = asyncio.get_running_loop()
            self._timers[client_id] = loop.call_later(HANDOVER_MS / 1_000, self.handed_in, client_id)
            body = encode(SessionFenced(client_id, session.epoch, hand_over=True))
            cast("Peer", session.owner).send(Command(RequestCode.SESSION_FENCED, flag=FLAG_ONEWAY, body=body))

    def handed_in(self, client_id: str) -> None:
        """The session is nobody's any more, or will not be handed in: whoever waits goes on."""
        timer = self._timers.pop(client_id, None)
        if timer is not None:
            timer.cancel()
        for proceed in self._waiting.pop(client_id, ()):
            proceed()

    def stop(self) -> None:
        """No further timer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
