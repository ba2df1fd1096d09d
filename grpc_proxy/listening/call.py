"""One gRPC call: what its handler sees of the connection, and how its outcome is sent.

    SINGLE   serve(call, message) -> message             SEVERAL  serve(call, message), which writes messages
    STREAM   serve(call), which reads and writes messages

A handler runs as a task that ends with the call: when the client resets its stream or its deadline passes, the handler
is cancelled. A call that goes wrong by gRPC's own rules is ended by `CallFault`, which is counted by its reason.
Invariants: a call is answered exactly once, or its client has left; `write` returns when the message is within the
window of its client, and raises `ClientLeft` when it never will be. What arrives and is not read by the handler is held
back from the client's window. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from grpc_proxy.http2.connection import Http2Connection
from grpc_proxy.http2.grpc_form import (
    ANSWER_BLOCK,
    DONE_BLOCK,
    NO_GRPC_BLOCK,
    Assembler,
    CallFault,
    StatusCode,
    framed,
    is_grpc,
    timeout_ns,
    trailers,
)
from grpc_proxy.http2.outgoing import CLOSED, Http2Stream
from grpc_proxy.http2.requests import Fields
from remoting import clock
from runtime.logs import get_logger

UNREAD_MAX = 16
"""Messages of a call that wait for its handler before the client's window stays closed."""
LOG = get_logger("grpc")


class ClientLeft(Exception):
    """The client has ended a call that is still being answered."""


@dataclass(frozen=True, slots=True)
class CallMethod:
    """One call that is served; exactly one of the three is set."""

    single: Callable[[Call, bytes], Awaitable[bytes]] | None = None
    several: Callable[[Call, bytes], Awaitable[None]] | None = None
    stream: Callable[[Call], Awaitable[None]] | None = None


@dataclass(slots=True)
class CallRules:
    """What all calls of one listener share."""

    methods: dict[bytes, CallMethod]
    """By path."""
    calls_max: int
    request_bytes_max: int
    held_bytes_max: int
    fault: Callable[[str], None]
    """Counts a call that ended by a rule of gRPC, by reason."""
    open_calls: int = field(default=0, init=False)
    held_bytes: int = field(default=0, init=False)
    """Bytes of requests of all connections that are not whole."""
    _none_open: asyncio.Event | None = field(default=None, init=False)

    def begun(self) -> None:
        """Count a call as being under way."""
        self.open_calls += 1

    def over(self) -> None:
        """Count a call as under way no more, and wake who waits for the last."""
        self.open_calls -= 1
        if not self.open_calls and self._none_open is not None:
            self._none_open.set()

    async def none_open(self) -> None:
        """Return when no call is under way."""
        if self.open_calls:
            self._none_open = asyncio.Event()
            await self._none_open.wait()


class CallHost(Protocol):
    """The connection of a call."""

    http: Http2Connection
    host: str
    rules: CallRules

    def touched(self) -> None:
        """There may be something to write."""

    async def writable(self) -> None:
        """Return when the socket takes more; ClientLeft when it has closed."""


class Call:
    """One call of a client."""

    __slots__ = (
        "_assembler", "_begun", "_drained", "_ended", "_held", "_is_whole", "_loop", "_messages", "_method", "_task",
        "_unread", "_waiting", "connection", "deadline_s", "fields", "stream",
    )  # fmt: skip

    def __init__(self, connection: CallHost, stream: Http2Stream, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.stream = stream
        self.fields: dict[bytes, bytes] = {}
        """The fields of the request, which are gRPC's metadata."""
        self.deadline_s: float | None = None
        """By the loop's clock."""
        self._loop = loop
        self._method: CallMethod | None = None
        self._assembler: Assembler | None = None
        self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._begun = False
        self._ended = False
        self._is_whole = False
        """The client has sent all that it had."""
        self._messages: deque[bytes] = deque()
        self._unread = 0
        self._waiting: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def host(self) -> str:
        """The client's address."""
        return self.connection.host

    def time_left_s(self) -> float | None:
        """Time until the client's deadline; None without one."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - clock.monotonic_s())

    async def write(self, message: bytes) -> None:
        """Send a message; returns when the client takes it. Raises ClientLeft."""
        http, stream = self.connection.http, self.stream
        if stream.state == CLOSED:
            raise ClientLeft
        if not self._begun:
            self._begun = True
            http.begin(stream, ANSWER_BLOCK)
        http.send(stream, framed(message))
        self.connection.touched()
        if stream.pending_bytes:
            self._drained = self._loop.create_future()
            await self._drained
            self._drained = None
            if stream.state == CLOSED:
                raise ClientLeft
        await self.connection.writable()

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> bytes:
        """The next message of the client."""
        while not self._messages:
            if self._is_whole or self._ended:
                raise StopAsyncIteration
            self._waiting = self._loop.create_future()
            await self._waiting
            self._waiting = None
        message = self._messages.popleft()
        if not self._messages and self._unread:
            self.connection.http.consumed(self.stream, self._unread)
            self._unread = 0
            self.connection.touched()
        return message

    # Called by the connection.

    def begin(self, fields: Fields | None, *, is_last: bool) -> None:
        """Take the request; what is wrong with it is answered at once."""
        rules = self.connection.rules
        rules.begun()
        try:
            if fields is None:
                raise CallFault(StatusCode.RESOURCE_EXHAUSTED, "metadata_bytes_max", "the metadata is too large")
            self.fields = given = dict(fields)
            if given[b":method"] != b"POST" or not is_grpc(given.get(b"content-type", b"")):
                rules.fault("no_grpc")
                self._end(NO_GRPC_BLOCK)
                return
            method = rules.methods.get(given[b":path"])
            if method is None:
                raise CallFault(StatusCode.UNIMPLEMENTED, "unknown_method", "there is no such call")
            if rules.open_calls > rules.calls_max:
                raise CallFault(StatusCode.RESOURCE_EXHAUSTED, "calls_max", "too many calls are under way")
            timeout = given.get(b"grpc-timeout")
            if timeout is not None:
                left_ns = timeout_ns(timeout)
                if left_ns is None:
                    raise CallFault(StatusCode.INTERNAL, "timeout", "grpc-timeout is malformed")
                self.deadline_s = clock.monotonic_s() + left_ns / 1e9
            self._method = method
            self._assembler = Assembler(given.get(b"grpc-encoding", b""), rules.request_bytes_max)
            self._is_whole = is_last
            if method.stream is not None:
                self._start(method.stream(self))
            elif is_last:
                raise CallFault(StatusCode.INTERNAL, "no_message", "the call has no message")
        except CallFault as fault:
            self.fail(fault)

    def data(self, data: bytes, *, is_last: bool) -> None:
        """Take data of the client."""
        if self._ended or self._assembler is None or self._method is None:
            self.connection.http.consumed(self.stream, len(data))
            return
        self._is_whole = is_last
        try:
            messages = self._assembler.feed(data)
            self._buffer(self._assembler.held_bytes)
            if self._method.stream is not None:
                self._queue(messages, len(data))
            else:
                self._request(messages, len(data))
        except CallFault as fault:
            self.connection.http.consumed(self.stream, len(data))
            self.fail(fault)

    def drained(self) -> None:
        """What was written is sent."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def left(self) -> None:
        """The client has ended the call, or the connection."""
        self._close()
        if self._task is not None:
            self._task.cancel()

    def fail(self, fault: CallFault) -> None:
        """End the call with an outcome of gRPC's."""
        if self._ended:
            return
        self.connection.rules.fault(fault.reason)
        self._end(trailers(fault.code, fault.text, alone=not self._begun))
        if self._task is not None:
            self._task.cancel()

    def _request(self, messages: list[bytes], size: int) -> None:
        """The one message of a call, when its stream ends."""
        self.connection.http.consumed(self.stream, size)
        self._messages.extend(messages)
        if len(self._messages) > 1 or (self._is_whole and (self._held or not self._messages)):
            raise CallFault(StatusCode.INTERNAL, "no_message", "the call has not exactly one message")
        if self._is_whole:
            self._serve(self._messages.popleft())

    def _serve(self, message: bytes) -> None:
        method = self._method
        assert method is not None
        if method.single is not None:
            self._start(self._single(method.single, message))
        elif method.several is not None:
            self._start(method.several(self, message))

    async def _single(self, serve: Callable[[Call, bytes], Awaitable[bytes]], message: bytes) -> None:
        answer = await serve(self, message)
        if not self._ended:
            self._begun = True
            self.connection.http.answer(self.stream, ANSWER_BLOCK, framed(answer), DONE_BLOCK)
            self._close()
            self.connection.touched()

    def _queue(self, messages: list[bytes], size: int) -> None:
        self._messages.extend(messages)
        self._unread += size
        if len(self._messages) < UNREAD_MAX:
            self.connection.http.consumed(self.stream, self._unread)
            self._unread = 0
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _start(self, work: Awaitable[None]) -> None:
        self._task = self._loop.create_task(self._run(work))

    async def _run(self, work: Awaitable[None]) -> None:
        try:
            await work
            if not self._ended:
                self._end(DONE_BLOCK if self._begun else trailers(alone=True))
        except ClientLeft:
            return
        except CallFault as fault:
            self._task = None
            self.fail(fault)
        except Exception:
            LOG.exception("call_failed", path=self.fields.get(b":path", b"").decode("latin-1"))
            self._task = None
            self.fail(CallFault(StatusCode.INTERNAL, "failed", "the proxy failed; its log has the reason"))

    def _end(self, block: bytes) -> None:
        self.connection.http.finish(self.stream, block)
        self._close()
        self.connection.touched()

    def _close(self) -> None:
        """The call is over: nothing of it counts any more."""
        if self._ended:
            return
        self._ended = True
        self._buffer(0)
        self._assembler = None
        self.connection.rules.over()
        for waiter in (self._waiting, self._drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _buffer(self, size: int) -> None:
        """Count the bytes of a message that is not whole, with those of all calls."""
        if size == self._held:
            return
        rules = self.connection.rules
        rules.held_bytes += size - self._held
        self._held = size
        if size and rules.held_bytes > rules.held_bytes_max:
            raise CallFault(StatusCode.RESOURCE_EXHAUSTED, "held_bytes_max", "too many requests are incomplete")
