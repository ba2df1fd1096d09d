"""The interfaces of every transport of commands, on a socket or inside one process, and how a connection ends.

`Peer` is one client as seen by a server's handler; `Connection` is one server as seen by a client. Code above the
transport uses only these two, so the all-in-one needs no sockets.
Invariant: `Ending.closing` is set when the end begins, `reason` when it is complete; a callback runs once, and one that
fails does not stop the others. Loop rule: every method is called on the event loop's thread; none blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from remoting.protocol.frames.commands import Command

REQUEST_TIMEOUT_MS = 10_000
"""How long a request waits for its answer by default."""

IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of unanswered requests on one connection; the next request waits for room."""

CloseCallback = Callable[[str], object]
"""Called once, with the reason, when the connection has ended."""

Answered = Callable[[Command | None, Exception | None], None]
"""Called once, with the response of a request (of any code) or with the error."""

PushCallback = Callable[[Command], None]
"""Called with each command a server sends on its own."""


class Peer(Protocol):
    """One client as a server's handler sees it."""

    address: str
    """`host:port` of the client, or `in-process`."""
    loopback: bool
    """True when the client runs on this machine."""
    attributes: dict[str, object]
    """State that handlers keep for this client; dropped with it."""

    @property
    def writable(self) -> bool:
        """False while output above the limit is queued: hold back pushes."""

    def send(self, command: Command) -> None:
        """Queue a reply or a push; all output of a loop turn is one write. A closed connection is not an error."""

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when the connection has ended; next turn if it already has."""


@runtime_checkable
class AnsweringPeer(Protocol):
    """A peer that answers requests of the server."""

    @property
    def writable(self) -> bool:
        """As `Peer.writable`."""

    def ask(self, command: Command, answered: Answered, timeout_ms: int) -> None:
        """Send a request; `answered` is called once, with the answer, `RequestTimeout` or `ConnectionLost`.

        Raises:
            Refused: SYSTEM_BUSY with too many unanswered requests.
            ConnectionLost: the connection has ended.
        """


Handler = Callable[[Peer, Command], Command | None]
"""Handles one request: returns the reply, or None if `peer.send(command.reply(...))` follows later (one-way: never)."""


class Connection(Protocol):
    """One server as its client sees it."""

    address: str
    """`host:port` of the server, or `in-process`."""

    @property
    def closed(self) -> bool:
        """True when no more requests can be made."""

    @property
    def writable(self) -> bool:
        """False while output above the limit is queued: hold back one-way commands."""

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request and return its answer, of any code. The command must not be reused (its opaque is set).

        Raises `RequestTimeout` or `ConnectionLost`; waits for room first while too many bytes are in flight.
        """

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """As `request`, without a coroutine: `answered` is called once, in a later step, never inside this call.

        The request is sent immediately when there is room. Raises `ConnectionLost` when closed.
        """

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer. Raises `ConnectionLost` when closed."""

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each command the server sends on its own."""

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when the connection has ended; next turn if it already has."""

    def abort(self, reason: str) -> None:
        """Close without sending what is queued. Pending requests fail in a later step."""

    async def close(self) -> None:
        """Close and wait until closed. Pending requests fail with `ConnectionLost`."""


@runtime_checkable
class RespondingConnection(Protocol):
    """A connection over which a client answers requests of the server."""

    def respond(self, command: Command) -> None:
        """Send the answer to a command that came by `on_push`; dropped when the connection has ended."""


Dial = Callable[[str], Awaitable[Connection]]
"""Connects to `host:port`; raises the error when it cannot."""


LOG = logging.getLogger("remoting")


class Ending:
    """The close state of one connection and the callbacks waiting for it."""

    __slots__ = ("_callbacks", "closing", "reason")

    def __init__(self) -> None:
        self.closing: str | None = None
        """Why it is ending or has ended; None while it is open."""
        self.reason: str | None = None
        """Why it has ended; None before."""
        self._callbacks: list[CloseCallback] = []

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; next turn if it already has."""
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback, self.reason)

    def finish(self) -> None:
        """Mark it as ended, for the reason it was closed, and run the callbacks."""
        assert self.closing is not None
        self.reason = self.closing
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            run_close_callback(callback, self.reason)


def run_close_callback(callback: CloseCallback, reason: str) -> None:
    """Run one callback; its failure must not keep the others from running."""
    try:
        callback(reason)
    except Exception:
        LOG.exception("a close callback failed")
