"""The twin of the socket transport inside one process: the same semantics, `Command` objects instead of bytes.

A command is delivered at the end of the loop turn, with all others of its round (`transport.turn`), so that nothing
runs inside the sender's call; it must not be changed after sending. Bodies are shared, never copied.
Invariant: as on a socket, what was sent before a close is still delivered, and each side's close callbacks run once.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from remoting.protocol.frames.commands import Command
from remoting.transport.calls import Calls, answer
from remoting.transport.contracts import (
    IN_FLIGHT_BYTES_MAX,
    REQUEST_TIMEOUT_MS,
    Answered,
    CloseCallback,
    Handler,
    PushCallback,
    run_close_callback,
)
from remoting.transport.failures import ConnectionLost
from remoting.transport.turn import soon

LOG = logging.getLogger("remoting")

ADDRESS = "in-process"


class _Lane:
    """Commands in transit to one end: all of one round are delivered together in the next."""

    def __init__(self, end: _End) -> None:
        self._end = end
        self._queue: list[Command] = []

    def put(self, command: Command) -> None:
        if not self._queue:
            soon(self._run)
        self._queue.append(command)

    def _run(self) -> None:
        # Commands sent during delivery wait for the next round, as they would on a socket.
        queue, self._queue = self._queue, []
        end = self._end
        for command in queue:
            end.command_received(command)


class _End:
    """Common part of both ends: receiving commands, and callbacks for the close."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._callbacks: list[CloseCallback] = []

    def command_received(self, command: Command) -> None:
        """Handle a command from the other end."""
        raise NotImplementedError

    def on_close(self, callback: CloseCallback) -> None:
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback, self.reason)

    def finish(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            run_close_callback(callback, reason)


class InProcessPeer(_End):
    """The client as seen by the handler."""

    def __init__(self, connection: InProcessConnection, handler: Handler) -> None:
        super().__init__()
        self.address = ADDRESS
        self.loopback = True
        self.attributes: dict[str, object] = {}
        self._connection = connection
        self._handler = handler
        self._lane = _Lane(connection)
        self.questions = Calls(ADDRESS, IN_FLIGHT_BYTES_MAX)
        """What the server has asked of this client."""

    @property
    def writable(self) -> bool:
        """Always True: output is delivered in this turn."""
        return True

    def send(self, command: Command) -> None:
        """Deliver a reply or a push at the end of the turn; dropped, as on a socket, when the connection has ended."""
        if not self._connection.is_ending:
            self._lane.put(command)

    def ask(self, command: Command, answered: Answered, timeout_ms: int) -> None:
        """Send a request of the server; `answered` is called once, as on a socket."""
        self.questions.begin(command, timeout_ms, self.send, answered)

    def close(self, reason: str) -> None:
        """End the connection from the server's side."""
        self._connection.end(reason)

    def command_received(self, command: Command) -> None:
        """Handle a request, or the answer to one of the server's; an unexpected answer is dropped."""
        if command.is_response:
            self.questions.answer(command)
        elif self.reason is None:
            answer(self._handler, self, command)


class InProcessConnection(_End):
    """A `Connection` to a handler in this process; made by `connect`."""

    def __init__(self, handler: Handler, in_flight_bytes_max: int) -> None:
        super().__init__()
        self.address = ADDRESS
        self.peer = InProcessPeer(self, handler)
        self.is_ending = False
        """True when no more requests can be made; those in transit still arrive."""
        self._calls = Calls(ADDRESS, in_flight_bytes_max)
        self._lane = _Lane(self.peer)
        self._transmit = self._lane.put
        self._push_callbacks: list[PushCallback] = []
        self._ended = asyncio.Event()

    @property
    def closed(self) -> bool:
        """True when no more requests can be made."""
        return self.is_ending

    @property
    def writable(self) -> bool:
        """Always True: output is delivered in this turn."""
        return True

    async def request(self, command: Command, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Send a request and return its answer, of any code."""
        self._check_open()
        return await self._calls.call(command, timeout_ms, self._transmit)

    def call(self, command: Command, answered: Answered, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Send a request; `answered(response, None)` or `answered(None, error)` follows, never in this call."""
        self._check_open()
        self._calls.begin(command, timeout_ms, self._transmit, answered)

    def oneway(self, command: Command) -> None:
        """Send a request that gets no answer."""
        self._check_open()
        command.opaque = self._calls.next_opaque()
        command.flag |= 2
        self._lane.put(command)

    def respond(self, command: Command) -> None:
        """Send the answer to a command that came by `on_push`; dropped when the connection has ended."""
        if not self.is_ending:
            self._lane.put(command)

    def on_push(self, callback: PushCallback) -> None:
        """Call `callback(command)` for each command the handler's side sends on its own."""
        self._push_callbacks.append(callback)

    async def close(self) -> None:
        """Close and wait until both ends are closed."""
        self.end("closed by this side")
        await self._ended.wait()

    def abort(self, reason: str) -> None:
        """Close as `end` does: nothing here can block."""
        self.end(reason)

    def end(self, reason: str) -> None:
        """Begin to close: commands in transit in either direction arrive first."""
        if self.is_ending:
            return
        self.is_ending = True
        soon(partial(self._finish, reason))

    def command_received(self, command: Command) -> None:
        """Pass an answer to its request, anything else to the push callbacks."""
        if command.is_response:
            self._calls.answer(command)
            return
        for callback in self._push_callbacks:
            try:
                callback(command)
            except Exception:
                LOG.exception("a callback failed on push %d", command.code)

    def _check_open(self) -> None:
        if self.is_ending:
            raise ConnectionLost(f"connection to {self.address} is closed: {self.reason or 'closing'}")

    def _finish(self, reason: str) -> None:
        self._calls.fail(reason)
        self.peer.questions.fail(reason)
        self.peer.finish(reason)
        self.finish(reason)
        self._ended.set()


def connect(handler: Handler, *, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX) -> InProcessConnection:
    """Connect to a handler of this process; needs a running loop."""
    return InProcessConnection(handler, in_flight_bytes_max)
