"""Pending requests of a client, and how a handler's result becomes the answer at a server.

`Calls`: number -> future or callback, with a time limit and a limit of bytes in flight. `answer` and `failure_reply`
are the same on a socket and inside one process.
Invariants: an entry leaves the table exactly once, by its answer, its time limit, its caller's cancellation or the
connection's end, and its bytes leave the count at the same moment; a request that is not one-way gets exactly one
reply, from here or, later, from its handler; no failure of a handler reaches the connection.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from remoting import clock
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Answered, Handler, Peer
from remoting.transport.failures import ConnectionLost, RequestTimeout

REQUEST_OVERHEAD_BYTES = 256
"""Bytes in flight that a request counts for without its body."""

OPAQUE_MAX = 0x7FFF_FFFF

SWEEP_MS = 250
"""Interval of the timer shared by requests of `begin`; each times out at most two intervals after its limit."""


class _Begun:
    """A request made by `begin`, instead of a future; `sweep`: number of the sweep that may time it out."""

    __slots__ = ("answered", "code", "size", "sweep", "timeout_ms")

    def __init__(self, answered: Answered, code: int, sweep: int, size: int, timeout_ms: int) -> None:
        self.answered = answered
        self.code = code
        self.sweep = sweep
        self.size = size
        self.timeout_ms = timeout_ms


class Calls:
    """The requests of one connection that have no answer yet."""

    def __init__(self, address: str, in_flight_bytes_max: int) -> None:
        self._address = address
        self._in_flight_bytes_max = in_flight_bytes_max
        self._in_flight_bytes = 0
        self._pending: dict[int, asyncio.Future[Command] | _Begun] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeps = 0
        self._begun = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opaque = 0
        self._lost: str | None = None
        self.late_answers = 0
        """Answers to requests that had already timed out or been cancelled."""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of requests that have no answer yet."""
        return self._in_flight_bytes

    def __len__(self) -> int:
        return len(self._pending)

    async def call(self, command: Command, timeout_ms: int, transmit: Callable[[Command], None]) -> Command:
        """Number the command, pass it to `transmit` when there is room, wait for its answer."""
        loop = asyncio.get_running_loop()
        left_s = timeout_ms / 1000
        size = len(command.body) + REQUEST_OVERHEAD_BYTES
        if self._waiting or not self._has_room(size):
            left_s = await self._room(size, command.code, timeout_ms)
        self._check_open()
        future: asyncio.Future[Command] = loop.create_future()
        opaque = command.opaque = self.next_opaque()
        self._pending[opaque] = future
        self._in_flight_bytes += size
        self._wake()  # the next in line may fit beside this one
        timer = loop.call_later(left_s, self._expire, future, command.code, timeout_ms)
        try:
            transmit(command)
            return await future
        finally:
            timer.cancel()
            del self._pending[opaque]
            self._in_flight_bytes -= size
            self._wake()

    def begin(self, command: Command, timeout_ms: int, transmit: Callable[[Command], None], answered: Answered) -> None:
        """As `call`, with a callback instead of a coroutine; transmits the command immediately when there is room."""
        size = len(command.body) + REQUEST_OVERHEAD_BYTES
        if self._waiting or not self._has_room(size):
            task = asyncio.get_running_loop().create_task(self._begin_later(command, timeout_ms, transmit, answered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._check_open()
        opaque = command.opaque = self.next_opaque()
        # Counted in sweeps, because reading the loop's clock, or finding the loop, costs more than all the rest.
        sweep = self._sweeps + (timeout_ms + SWEEP_MS - 1) // SWEEP_MS + 1
        self._pending[opaque] = _Begun(answered, command.code, sweep, size, timeout_ms)
        self._in_flight_bytes += size
        self._begun += 1
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_MS / 1000, self._sweep)
        transmit(command)

    async def _begin_later(
        self, command: Command, timeout_ms: int, transmit: Callable[[Command], None], answered: Answered
    ) -> None:
        response, failure = None, None
        try:
            response = await self.call(command, timeout_ms, transmit)
        except LightMQError as error:
            failure = error
        _report(answered, response, failure)

    def _finish(self, opaque: int, begun: _Begun, response: Command | None, error: Exception | None) -> None:
        del self._pending[opaque]
        self._in_flight_bytes -= begun.size
        self._begun -= 1
        if self._waiting:
            self._wake()
        _report(begun.answered, response, error)

    def _sweep(self) -> None:
        """Time out overdue requests; the timer runs only while requests of this kind are pending."""
        self._sweeper = None
        self._sweeps += 1
        for opaque, entry in list(self._pending.items()):
            if isinstance(entry, _Begun) and entry.sweep <= self._sweeps:
                self._finish(opaque, entry, None, RequestTimeout(entry.code, self._address, entry.timeout_ms))
        if self._begun and self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_MS / 1000, self._sweep)

    def answer(self, response: Command) -> None:
        """Complete the request of a response; late responses are counted and dropped."""
        entry = self._pending.get(response.opaque)
        if isinstance(entry, _Begun):
            self._finish(response.opaque, entry, response, None)
        elif entry is None or entry.done():
            self.late_answers += 1
        else:
            entry.set_result(response)

    def fail(self, reason: str) -> None:
        """Fail every pending request, and all later ones, with `ConnectionLost`."""
        if self._lost is None:
            self._lost = reason
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for opaque, entry in list(self._pending.items()):
            if isinstance(entry, _Begun):
                self._finish(opaque, entry, None, self._loss())
            elif not entry.done():
                entry.set_exception(self._loss())
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._loss())

    def next_opaque(self) -> int:
        """Return a number that no pending request has."""
        while True:
            self._opaque = self._opaque + 1 if self._opaque < OPAQUE_MAX else 1
            if self._opaque not in self._pending:
                return self._opaque

    def _loss(self) -> ConnectionLost:
        return ConnectionLost(f"connection to {self._address} is closed: {self._lost}")

    def _check_open(self) -> None:
        if self._lost is not None:
            raise self._loss()

    def _has_room(self, size: int) -> bool:
        # One request always fits; otherwise a body above the limit could never be sent.
        return not self._pending or self._in_flight_bytes + size <= self._in_flight_bytes_max

    async def _room(self, size: int, code: int, timeout_ms: int) -> float:
        """Wait for room; return the seconds that are left."""
        self._check_open()
        loop, left_s = asyncio.get_running_loop(), timeout_ms / 1000
        deadline_s = clock.monotonic_s() + left_s
        first = True
        while first or not self._has_room(size):
            future: asyncio.Future[None] = loop.create_future()
            # The first in the line stays first when the room was too small for it.
            (self._waiting.append if first else self._waiting.appendleft)(future)
            first = False
            timer = loop.call_later(left_s, self._expire, future, code, timeout_ms)
            try:
                await future
            except BaseException:
                self._wake()
                raise
            finally:
                timer.cancel()
                if future in self._waiting:
                    self._waiting.remove(future)
            left_s = deadline_s - clock.monotonic_s()
        return left_s

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return

    def _expire(self, future: asyncio.Future[Command] | asyncio.Future[None], code: int, timeout_ms: int) -> None:
        if not future.done():
            future.set_exception(RequestTimeout(code, self._address, timeout_ms))


def _report(answered: Answered, response: Command | None, error: Exception | None) -> None:
    """Run a callback; its failure must not lose the other answers of the same read."""
    try:
        answered(response, error)
    except Exception as failure:  # noqa: BLE001
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"{answered!r} failed on an answer", "exception": failure}
        )


LOG = logging.getLogger("remoting")


@runtime_checkable
class CountsRefusals(Protocol):
    """A peer whose refusals have a limit."""

    def refused(self) -> None:
        """Count a request that was refused for lack of a right."""


def answer(handler: Handler, peer: Peer, command: Command) -> None:
    """Run the handler and send what it answers; a one-way request gets nothing."""
    try:
        reply = handler(peer, command)
        if reply is not None and not command.is_oneway:
            peer.send(reply)
    except Exception as error:  # noqa: BLE001 - the peer always gets an answer
        reply = failure_reply(peer, command, error)
        if not command.is_oneway:
            peer.send(reply)


def failure_reply(peer: Peer, command: Command, error: Exception) -> Command:
    """Return the reply to a failed request: the refusal, malformed, or a system error, which is logged."""
    if isinstance(error, Refused):
        if error.code == ResponseCode.NO_PERMISSION:
            note_refusal(peer)
        return command.reply(error.code, error.remark, dict(error.fields))
    if isinstance(error, RemoteViolation):
        # Only the frame's content is malformed: an answer helps the peer more than a closed connection.
        LOG.warning("request %d of %s is malformed: %s", command.code, peer.address, error)
        return command.reply(ResponseCode.INVALID_PARAMETER, f"request {command.code} is malformed: {error}")
    LOG.error("request %d of %s failed", command.code, peer.address, exc_info=error)
    return command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def note_refusal(peer: Peer) -> None:
    """Count a refusal for lack of a right, at peers that limit these; may close the connection."""
    if isinstance(peer, CountsRefusals):
        peer.refused()
