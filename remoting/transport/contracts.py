"""The interfaces of every transport of commands, on a socket or inside one process, and how a connection ends.

`Peer` is what a server's handler sees of one client; `Connection` is what a client sees of one server. Code above the
transport knows these two only, which is why the all-in-one can leave the sockets out.
Invariant: `Ending.closing` is set when the end begins, `reason` when it is complete; a callback runs once, and one that
fails does not stop the others. Loop rule: every method is called on the event loop's thread; none blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from remoting.protocol.frames.commands import Command

REQUEST_TIMEOUT_MS = 10_000
"""How long a request waits for its answer unless the caller says otherwise."""

IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of requests without an answer that one connection holds; the next request waits for room."""

CloseCallback = Callable[[str], object]
"""Called once, with the reason, when the other side is gone."""

Answered = Callable[[Command | None, Exception | None], None]
"""Called once with the response of a request, whatever its code, or with why there is none."""

PushCallback = Callable[[Command], None]
"""Called with each command a server sends on its own."""


class Peer(Protocol):
    """One client as a server's handler sees it."""

    address: str
    """`host:port` of the client, or `in-process`."""
    loopback: bool
    """True when the client runs on this machine."""
    attributes: dict[str, object]
    """Room for what handlers remember of this client; dropped with it."""

    @property
    def writable(self) -> bool:
        """False while more output waits than the limit allows: hold back what nobody asked for."""

    def send(self, command: Command) -> None:
        """Queue a reply or a push; everything of one loop turn leaves in one write. A gone client is not an error."""

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when this client is gone; at once (next turn) if it already is."""


Handler = Callable[[Peer, Command], Command | None]
"""Answers one request: the reply, or None when `peer.send(command.reply(...))` follows later (or never, one-way)."""


class Connection(Protocol):
    """One server as its client sees it."""

    address: str
    """`host:port` of the server, or `in-process`."""

    @property
    def closed(self) -> bool:
        """True when no request can be made any more."""

    @property
    def writable(self) -> bool:
        """False while more output waits than the limit allows: hold back one-way commands."""

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request and wait for its answer, whatever its code. The command is given away (its opaque is set).

        Raises `RequestTimeout` or `ConnectionLost`; waits for room first while too many bytes are in flight.
        """

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """As `request`, without a coroutine: `answered` is called once, in a later step, never inside this call.

        The request leaves at once when there is room. Raises `ConnectionLost` when closed.
        """

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer. Raises `ConnectionLost` when closed."""

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each command the server sends on its own."""

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` when the connection is gone; at once (next turn) if it already is."""

    def abort(self, reason: str) -> None:
        """Close at once, without waiting for anything to be taken. Requests without an answer fail in a later step."""

    async def close(self) -> None:
        """Close and wait until it is closed. Requests without an answer fail with `ConnectionLost`."""


Dial = Callable[[str], Awaitable[Connection]]
"""Makes a connection to `host:port`; raises what went wrong."""


LOG = logging.getLogger("remoting")


class Ending:
    """The end of one connection, which has not come yet."""

    __slots__ = ("_callbacks", "closing", "reason")

    def __init__(self) -> None:
        self.closing: str | None = None
        """Why it is ending or has ended; None while it is open."""
        self.reason: str | None = None
        """Why it has ended."""
        self._callbacks: list[CloseCallback] = []

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; next turn if it already has."""
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback, self.reason)

    def finish(self) -> None:
        """It has ended, for the reason that it was closed for: tell everyone."""
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
