"""The connections of the administration port: aiohttp's HTTP, behind bounds on memory, time and numbers.

    waiting   the head of the next request gathers in a buffer of HEAD_BYTES_MAX; it must be complete in time
    handed    aiohttp has got a whole head; nothing more is handed over until its request begins
    body      the request has begun, and its body is passed on as aiohttp takes it
    serving   the request is answered; whatever the client sends in advance stays in the buffer

Requests sent in advance are served one after another, and while the socket takes no output nothing is served. A stream
(events, a WebSocket) belongs to somebody who has signed in: it has no time limit, and is not dropped. Among the other
connections the least recently served is dropped when there are too many, so that idle ones lock nobody out.
Invariants: an unauthenticated peer costs one buffer, one request and one answer; every state but a stream has a time
limit; no answer names versions. Only this module and those above it import aiohttp, which takes half a second: import
it in a thread. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web

from remoting.transport.patience import PatientTimer
from runtime.problems import PROBLEM_TYPE, problem_body

HEAD_BYTES_MAX = 8_192
"""Request line and headers together; a longer head is refused with 431."""
END = b"\r\n\r\n"
CONNECTIONS_MAX = 256
"""Most connections at a time, streams apart; the next one ends the least recently served."""
FIRST_REQUEST_S_MAX = 10.0
"""A connection without a complete request within this time is closed."""
KEEP_ALIVE_S = 15.0
"""How long a connection may take to make its next request."""
REQUEST_S_MAX = 60.0
"""How long a request may take from its head to its answer, a slow body included."""
ANSWER_S_MAX = 20.0
"""How long a client may read nothing of an answer."""
LINGERING_S = 2.0
"""How long the body of a refused request is read and dropped, so that its client sees the answer."""
BODY_BYTES_MAX = 65_536
"""Largest body of a request, unless its route allows another size."""
SERVER_NAME = "LightMQ"
LOG = logging.getLogger("admin")

WAITING, HANDED, BODY, SERVING, STREAM = "waiting", "handed", "body", "serving", "stream"
Handling = Callable[[web.Request], Awaitable[web.StreamResponse]]
Step = Callable[[web.Request, Handling], Awaitable[web.StreamResponse]]
"""Something that every request goes through; it calls the rest."""


class _Http(web.RequestHandler):
    """aiohttp's protocol of one connection, with our answer to what it cannot parse."""

    __slots__ = ("_malformed",)

    def __init__(self, server: web.Server, malformed: Callable[[], object]) -> None:
        limits: dict[str, Any] = {
            "max_line_size": HEAD_BYTES_MAX, "max_field_size": HEAD_BYTES_MAX, "lingering_time": LINGERING_S,
            "keepalive_timeout": 86_400.0, "access_log": None,
        }  # fmt: skip
        super().__init__(server, loop=asyncio.get_running_loop(), **limits)
        self._malformed = malformed

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - the library's text may quote the request
    ) -> web.StreamResponse:
        """Answer what is no request with a sentence, and close."""
        if status < 500:
            self._malformed()
        else:
            LOG.error("request %s failed", request.path, exc_info=exc)
        reason, text = (
            ("malformed", "not a request of HTTP version 1")
            if status < 500
            else ("failed", "the request failed; see the log")
        )
        body = problem_body(status, reason, text)
        answer = web.Response(status=status, body=body, content_type=PROBLEM_TYPE, headers={"Server": SERVER_NAME})
        answer.force_close()
        return answer


class _Gate:
    """The transport as aiohttp sees it: to pause reading is to stop what the connection hands over."""

    def __init__(self, transport: asyncio.Transport, connection: PageConnection) -> None:
        self.connection = connection
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pause_reading(self) -> None:
        self.connection.take_pause()

    def resume_reading(self) -> None:
        self.connection.end_pause()


class PageConnections:
    """Makes the protocol of each socket of the port, and limits their number."""

    def __init__(self, server: web.Server, malformed: Callable[[], object]) -> None:
        """`malformed` is called for each malformed request."""
        self.malformed = malformed
        self._server = server
        self._open: dict[PageConnection, None] = {}
        self.streams: set[PageConnection] = set()
        """Connections that are streams; they belong to people who have signed in."""

    def __call__(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new socket."""
        return PageConnection(self, _Http(self._server, self.malformed))

    def __len__(self) -> int:
        return len(self._open) + len(self.streams)

    def made(self, connection: PageConnection) -> None:
        """Count a new connection; the least recently served one is dropped when there are too many."""
        self._open[connection] = None
        while len(self._open) > CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.abort()

    def served(self, connection: PageConnection) -> None:
        """Note that a connection has been served, which makes it the last to be dropped."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def streaming(self, connection: PageConnection) -> None:
        """Exempt a connection from being dropped for others."""
        if self._open.pop(connection, self) is None:
            self.streams.add(connection)

    def lost(self, connection: PageConnection) -> None:
        """Stop counting a connection that has ended."""
        self._open.pop(connection, None)
        self.streams.discard(connection)

    def close(self) -> None:
        """Drop all connections without flushing."""
        for connection in [*self._open, *self.streams]:
            connection.abort()


class PageConnection(asyncio.BufferedProtocol):
    """One client of the administration port."""

    def __init__(self, connections: PageConnections, http: web.RequestHandler) -> None:
        self._connections = connections
        self._http = http
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._state = WAITING
        self._request: web.BaseRequest | None = None
        self._full = False
        """Whether aiohttp takes nothing more of a body."""
        self._blocked = False
        """Whether the socket takes no output."""
        self._paused = False
        """Whether nothing is read, because the buffer is full."""
        self._timer: PatientTimer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1)  # above 0, TLS takes an empty buffer for a full one
        self._due(FIRST_REQUEST_S_MAX)
        self._http.connection_made(cast("asyncio.BaseTransport", _Gate(self._transport, self)))
        self._connections.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's own signature
        """Return where the loop puts its next read; there is room, because reading stops when it is full."""
        return memoryview(self._buffer)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what can be served."""
        self._held += nbytes
        self._feed()

    def eof_received(self) -> bool:
        """Close: nobody reads the answer."""
        self._http.eof_received()
        return False

    def pause_writing(self) -> None:
        """Serve nothing until the socket has taken the whole answer."""
        self._blocked = True
        self._http.pause_writing()
        self._due(ANSWER_S_MAX)

    def resume_writing(self) -> None:
        """Continue: the socket has taken the answer, and the next request may already be in the buffer."""
        self._blocked = False
        self._http.resume_writing()
        self._restart_timer()
        self._turn()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the time limit and stop counting the connection."""
        self._due(None)
        self._transport = self._request = None
        self._http.connection_lost(error)
        self._connections.lost(self)

    def abort(self) -> None:
        """Close the socket without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def began(self, request: web.BaseRequest) -> None:
        """Note that aiohttp has begun with the request that was handed over; its body is passed on from now."""
        self._request = request
        self._state = SERVING if request.content.is_eof() else BODY
        self._connections.served(self)
        self._due(REQUEST_S_MAX)
        self._turn()

    def stream(self) -> None:
        """Turn the request that is served into a stream, whose input is passed on as it comes."""
        self._state = STREAM
        self._connections.streaming(self)
        self._due(None)
        self._turn()

    def finished(self) -> None:
        """Note that the request has its answer."""
        if self._request is not None and self._state != STREAM:
            self._request = None
            self._state = WAITING
            self._restart_timer()
            self._turn()

    def take_pause(self) -> None:
        """Hand nothing over until `end_pause`: aiohttp holds enough of a body."""
        self._full = True

    def end_pause(self) -> None:
        """Continue to hand over."""
        self._full = False
        self._turn()

    def _restart_timer(self) -> None:
        if self._state == WAITING:
            self._due(KEEP_ALIVE_S)
        else:
            self._due(None if self._state == STREAM else REQUEST_S_MAX)

    def _due(self, seconds: float | None) -> None:
        """Set the time limit of the current state."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and self._transport is not None:
            self._timer = PatientTimer(seconds, self.abort)

    def _turn(self) -> None:
        """Continue in the loop's next turn, after other connections."""
        if self._held:
            self._loop.call_soon(self._feed)

    def _feed(self) -> None:
        """Hand over what the state allows, and read on while there is room."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not (self._blocked or self._full) and self._held:
            if self._state in (BODY, STREAM):
                self._hand_over(self._held)
                if self._state == BODY and self._request is not None and self._request.content.is_eof():
                    self._state = SERVING
            elif self._state == WAITING and not self._hand_over_head():
                return
        wants_room = self._held == HEAD_BYTES_MAX
        if wants_room != self._paused:
            self._paused = wants_room
            (transport.pause_reading if wants_room else transport.resume_reading)()

    def _hand_over_head(self) -> bool:
        """Hand one head over if it is complete; false when the connection ends because it is too long."""
        end = self._buffer.find(END, 0, self._held)
        if end >= 0:
            self._state = HANDED
            self._hand_over(end + len(END))
        elif self._held == HEAD_BYTES_MAX:
            self._refuse_long_head()
            return False
        return True

    def _hand_over(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        self._buffer[: self._held - size] = self._buffer[size : self._held]
        self._held -= size
        self._http.data_received(data)

    def _refuse_long_head(self) -> None:
        self._connections.malformed()
        body = problem_body(431, "head_too_large", f"a request head may have at most {HEAD_BYTES_MAX} bytes")
        transport = self._transport
        assert transport is not None
        head = (
            f"HTTP/1.1 431 {HTTPStatus(431).phrase}\r\nServer: {SERVER_NAME}\r\n"
            f"Content-Type: {PROBLEM_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        transport.write(head.encode() + body)
        self._due(ANSWER_S_MAX)
        transport.close()


def connection_of(request: web.BaseRequest) -> PageConnection | None:
    """Return the connection that a request came on; None when it has ended."""
    gate = request.transport
    return gate.connection if isinstance(gate, _Gate) else None


@web.middleware
async def bounded(request: web.Request, handler: Handling) -> web.StreamResponse:
    """Serve a request within the connection's states; what fails is logged, not shown."""
    connection = connection_of(request)
    if connection is None:
        return web.Response(status=400)  # nobody reads it: the client left before its turn came
    connection.began(request)
    try:
        return await handler(request)
    except (web.HTTPException, asyncio.CancelledError):
        raise
    except ConnectionError:
        return web.Response(status=400)  # nobody reads it: the client has left
    except Exception:
        LOG.exception("request %s %s failed", request.method, request.path)
        return web.Response(status=500, text="the request failed; see the log\n")
    finally:
        connection.finished()


async def name_server(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Headers of every answer: no version, nothing is cached or guessed unless a route says otherwise."""
    response.headers["Server"] = SERVER_NAME
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


def as_middleware(step: Step) -> Step:
    """Return a step, which may be a method, as aiohttp wants its middlewares."""

    async def stepped(request: web.Request, handler: Handling) -> web.StreamResponse:
        return await step(request, handler)

    made: Step = web.middleware(stepped)
    return made


def make_application(*steps: Step) -> web.Application:
    """Return an application whose requests are bounded, and go through these steps after that."""
    inside: list[Any] = [as_middleware(step) for step in steps]
    application = web.Application(middlewares=[bounded, *inside], client_max_size=BODY_BYTES_MAX)
    application.on_response_prepare.append(name_server)
    return application


class HttpPort:
    """A listening socket with its application."""

    def __init__(self, application: web.Application, malformed: Callable[[], object]) -> None:
        self._runner = web.AppRunner(application)
        self._malformed = malformed
        self._server: asyncio.Server | None = None
        self.connections: PageConnections | None = None
        """From the start on."""

    async def start(self, host: str, port: int, ssl: Any = None) -> int:
        """Listen and return the port; 0 requests any free one. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None
        self.connections = PageConnections(self._runner.server, self._malformed)
        more = {} if ssl is None else {"ssl": ssl, "ssl_handshake_timeout": FIRST_REQUEST_S_MAX}
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self.connections, host, port, **more)
        except OSError:
            await self._runner.cleanup()
            raise
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the listener and all connections; idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self.connections is not None:
            self.connections.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGERING_S):
                await self._runner.cleanup()
