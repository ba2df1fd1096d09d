"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, only after the
recovery; ``/readyz`` 200 with every part true, else 503. To permitted clients it also shows the parts as
JSON and, if known, the reason why a part is not ready; problems that do not stop the service are listed under
``degraded``; ``/status`` is the process's status as JSON, for people and for the command line.
Nothing here changes anything.

A guard decides about every request; a page unknown to the guard is an error when the server is made. Without a key
requests are answered only under `localhost`, an IP address or a configured name, so that no web page can read what its
visitor's machine may (DNS rebinding).
Loop rule: on the loop's thread.

Connections of the administration port: few, short-lived, small; answers do not reveal versions.

    waiting   a request must be complete within a time limit, in a buffer of HEAD_BYTES_MAX that never grows
    due       a request is complete, and nothing is read until its connection's turn comes
    answering one page after another, each in its own turn; while the socket does not take one, nothing is
              read, and it must be taken within a time limit

Turns are taken in the order in which requests became complete, ANSWERS_PER_LOOP_TURN in one turn of the loop. The loop
accepts one connection per turn, so that short turns let a supervisor in among hundreds of busy connections; and
whatever else the loop serves waits for no more than so many pages.

When there are too many, the least recently served one is dropped, so that idle connections cannot lock out a
supervisor. Invariants: an unauthenticated peer costs one buffer and one small answer; every state has a time limit.
Loop rule: all on the loop's thread; pages are made without waiting.

The head of an HTTP/1 request, as needed for a few read-only pages: bytes in, a request or an error out.

    GET /metrics?x=1 HTTP/1.1 CRLF          -> method, path (a query is cut off)
    Host: localhost:8080 CRLF               -> host; that of an absolute target counts instead
    Authorization: Basic ... CRLF           -> authorization, unparsed
    Connection: close CRLF CRLF             -> keep_alive

Requests have no body: one that announces a body is refused, so that no byte of it can be taken for a request.
Invariant: anything ambiguous (a folded line, a name with a space, two Host headers) is refused. Pure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol, cast

from remoting.protocol.errors import LightMQError
from remoting.protocol.web_host import is_safe_host
from runtime.logs import get_logger
from runtime.metrics import Registry

HEAD_BYTES_MAX = 8_192
"""Request line and headers together; a longer head is refused with 431."""
END = b"\r\n\r\n"

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S{1,2048}) HTTP/1\.([01])\Z")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*\Z")
_TARGET = re.compile(r"(?:https?://([^/?#]+))?(/[^?#]*|(?=[?#]|\Z))", re.IGNORECASE)
_ONCE = ("host", "authorization", "content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of an HTTP request, parsed."""

    method: str
    path: str
    host: str | None
    """The client's name for this server; None without a Host header."""
    authorization: str
    keep_alive: bool


class BadRequest(Exception):
    """The head cannot be served; the connection ends with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_head(head: bytes) -> Request:
    """Parse a request head, which ends with an empty line. Raises BadRequest."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").removesuffix("\r\n\r\n").split("\r\n")
    line = _LINE.match(first)
    if line is None:
        raise BadRequest(400, "not an HTTP/1 request")
    target = _TARGET.match(line[2])
    if target is None or (not target[1] and not target[2]):
        raise BadRequest(400, "the target is not a path")
    fields = _fields(lines)
    if fields.get("content-length", "0") != "0" or "transfer-encoding" in fields:
        raise BadRequest(400, "requests must not have a body")
    host = target[1] or fields.get("host")
    if host is None and line[3] == "1":
        raise BadRequest(400, "an HTTP/1.1 request must have a Host header")
    wanted = {word.strip() for word in fields.get("connection", "").lower().split(",")}
    keep_alive = "close" not in wanted and (line[3] == "1" or "keep-alive" in wanted)
    return Request(line[1], target[2] or "/", host, fields.get("authorization", ""), keep_alive)


def _fields(lines: list[str]) -> dict[str, str]:
    """Return headers by lower-case name; of a repeated one the last, if that is harmless."""
    fields: dict[str, str] = {}
    for text in lines:
        found = _FIELD.match(text)
        if found is None:
            raise BadRequest(400, "a header line is malformed")
        name = found[1].lower()
        if name in fields and name in _ONCE:
            raise BadRequest(400, f"the header {name} is repeated")
        fields[name] = found[2]
    return fields


LOG = logging.getLogger("admin")
SERVER_NAME = "LightMQ"
CONNECTIONS_MAX = 256
"""Most connections at a time; the next one ends the least recently served."""
FIRST_REQUEST_S_MAX = 10.0
"""A connection without a complete request within this time is closed."""
ANSWERS_PER_LOOP_TURN = 8
"""Most requests answered in one turn of the loop; the others wait for the next ones."""
KEEP_ALIVE_S = 15.0
"""How long a connection may take to make its next request."""
ANSWER_S_MAX = 20.0
"""How long a client may take to read an answer."""
METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request: a page or an error."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a sentence as plain text."""
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers or {})


Pages = Callable[[Request, str], Answer]
"""(request, address of the peer) -> answer."""


class PageConnections:
    """Makes the protocol of each socket of the port, and limits their number."""

    def __init__(self, pages: Pages, malformed: Callable[[], object]) -> None:
        """`malformed` is called for each malformed request."""
        self.pages = pages
        self.malformed = malformed
        self._open: dict[PageConnection, None] = {}
        self._due: deque[PageConnection] = deque()
        self._scheduled = False

    def __call__(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new socket."""
        return PageConnection(self)

    def __len__(self) -> int:
        return len(self._open)

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

    def take_turn(self, connection: PageConnection) -> None:
        """Let a connection continue after those that came before; until then it may not ask again."""
        self._due.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = [self._due.popleft() for _ in range(min(len(self._due), ANSWERS_PER_LOOP_TURN))]
        if self._due:
            self._schedule()
        for connection in now:
            connection.go_on()

    def lost(self, connection: PageConnection) -> None:
        """Stop counting a connection that has ended."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """Drop all connections without flushing."""
        for connection in list(self._open):
            connection.abort()


class PageConnection(asyncio.BufferedProtocol):
    """One client of the administration port: reads heads, writes pages."""

    def __init__(self, connections: PageConnections) -> None:
        self._connections = connections
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._held = 0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address = "?"
        self._answering = False
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        name = transport.get_extra_info("peername")
        self._address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        self._due(FIRST_REQUEST_S_MAX)
        self._connections.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's own signature
        """Return where the loop puts its next read; there is room, because a full buffer ends the connection."""
        return memoryview(self._buffer)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take a turn once the request is complete, or too long."""
        self._held += nbytes
        if self._held == HEAD_BYTES_MAX or self._buffer.find(END, 0, self._held) >= 0:
            self._take_turn()

    def pause_writing(self) -> None:
        """Stop reading until the socket has taken the whole answer."""
        self._answering = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._due(ANSWER_S_MAX)

    def resume_writing(self) -> None:
        """Continue: the socket has taken the answer, and the next request may already be in the buffer."""
        self._answering = False
        self._due(KEEP_ALIVE_S)
        self._take_turn()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's own signature
        """Cancel the time limit and stop counting the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._connections.lost(self)

    def abort(self) -> None:
        """Close the socket without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def _due(self, seconds: float) -> None:
        """Set the time limit of the current state."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = self._loop.call_later(seconds, self.abort)

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _take_turn(self) -> None:
        """Continue after other connections; until then nothing is read."""
        if self._open and not self._turn_due:
            assert self._transport is not None
            self._turn_due = True
            self._transport.pause_reading()
            self._connections.take_turn(self)

    def go_on(self) -> None:
        """Serve what is buffered, then read again: in this order, because the buffer may be full."""
        self._turn_due = False
        self._serve()
        if self._open and not self._answering and not self._turn_due:
            assert self._transport is not None
            self._transport.resume_reading()

    def _serve(self) -> None:
        """Answer one request, if a complete one is buffered and the socket has taken the previous answer."""
        if not self._open or self._answering:
            return
        end = self._buffer.find(END, 0, self._held)
        if end < 0:
            if self._held == HEAD_BYTES_MAX:
                self._refuse(BadRequest(431, f"a request head may have at most {HEAD_BYTES_MAX} bytes"))
            return
        size = end + len(END)
        head = bytes(self._buffer[:size])
        self._buffer[: self._held - size] = self._buffer[size : self._held]
        self._held -= size
        self._answer(head)
        if self._held:
            self._take_turn()

    def _answer(self, head: bytes) -> None:
        try:
            request = parse_head(head)
        except BadRequest as error:
            self._refuse(error)
            return
        if request.method not in METHODS:
            answer = text_answer(405, "this port only serves pages", {"Allow": ", ".join(METHODS)})
        else:
            answer = self._page(request)
        self._due(KEEP_ALIVE_S)
        self._connections.served(self)
        self._send(answer, keep_alive=request.keep_alive, with_body=request.method != "HEAD")

    def _page(self, request: Request) -> Answer:
        try:
            return self._connections.pages(request, self._address)
        except Exception:
            LOG.exception("page %s failed", request.path)
            return text_answer(500, "the page could not be made; see the log")

    def _refuse(self, error: BadRequest) -> None:
        self._connections.malformed()
        self._send(text_answer(error.status, error.reason), keep_alive=False)

    def _send(self, answer: Answer, *, keep_alive: bool, with_body: bool = True) -> None:
        transport = self._transport
        assert transport is not None
        fields = {
            "Server": SERVER_NAME,
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
            "Connection": "keep-alive" if keep_alive else "close",
        }
        head = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
        transport.write(head.encode("latin-1") + (answer.body if with_body else b""))
        if not keep_alive:
            self._due(ANSWER_S_MAX)
            transport.close()


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
READY, READY_PARTS = "/readyz", "/readyz parts"
"""The page, and its details on single parts, which need a separate right."""
CHALLENGE = {"WWW-Authenticate": 'Basic realm="LightMQ", charset="UTF-8"'}
HOST, UNPROVEN, FORBIDDEN, MALFORMED = REASONS = ("host", "unproven", "forbidden", "malformed")
"""Reasons of refused requests, as metric labels; the middle two come from the guard."""
LOG_INTERVAL_S = 60.0
"""Shortest interval between log lines for refusals for one reason."""


class Guard(Protocol):
    """Decides which pages a client may see."""

    @property
    def pages(self) -> Collection[str]:
        """The pages it decides about."""
        ...

    def proves(self, authorization: str) -> bool:
        """Whether this header proves a key."""
        ...

    def judge(self, page: str, address: str, authorization: str, *, counted: bool = True) -> str:
        """Empty when the peer at this address may see the page, else UNPROVEN or FORBIDDEN."""
        ...


class AdminServer:
    """An HTTP server of a few read-only pages."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: Registry,
        guard: Guard,
        readiness: Callable[[], Mapping[str, bool]],
        status: Callable[[], Mapping[str, Any]],
        reasons: Callable[[], Mapping[str, str]] = dict,
        hosts: Collection[str] = (),
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``reasons``: part -> why it cannot work; ``degraded``: part -> what is wrong although it can work.

        ``hosts``: its further names. Raises LightMQError for a page unknown to the guard.
        """
        self._degraded = degraded
        self.host = host
        self.port = port
        self._guard = guard
        self._readiness = readiness
        self._reasons = reasons
        self._hosts = (host, *hosts)
        self._server: asyncio.Server | None = None
        self._log = get_logger("admin")
        self._logged: dict[str, tuple[float, int]] = {}
        refused = registry.counter(
            "rocketmq_admin_requests_refused_total",
            "Requests at the administration port refused, by reason",
            labels=("reason",),
        )
        self._refused = {reason: refused.child(reason) for reason in REASONS}
        self._pages: dict[str, Pages] = {
            "/metrics": lambda _request, _address: Answer(200, METRICS_TYPE, registry.page()),
            "/livez": lambda _request, _address: _json({"live": True}),
            "/startupz": lambda _request, _address: _json({"started": True}),
            READY: self._ready_page,
            "/status": lambda _request, _address: _json(dict(status())),
        }
        if strangers := {READY_PARTS, *self._pages} - set(guard.pages):
            raise LightMQError(f"no right is declared for {', '.join(sorted(strangers))}: remoting.access.rights")
        self._connections = PageConnections(self.answer, self._malformed)

    @property
    def pages(self) -> frozenset[str]:
        """The pages of this server, each known to the guard."""
        return frozenset((READY_PARTS, *self._pages))

    async def start(self) -> int:
        """Listen and return the port, also in ``port``; 0 requests any free one. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connections, self.host, self.port, backlog=CONNECTIONS_MAX
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        """Close the listener and all connections; idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._connections.close()

    def answer(self, request: Request, address: str) -> Answer:
        """Return the requested page, or the error for this peer."""
        safe = request.host is None or is_safe_host(request.host, self._hosts)
        if not safe and not self._guard.proves(request.authorization):
            self._refuse(HOST, request.path, address)
            text = "without an access key use localhost, an IP address or a name from admin_hosts"
            return text_answer(403, text)
        page = self._pages.get(request.path)
        if page is None:
            return text_answer(404, f"the pages are {', '.join(sorted(self._pages))}")
        verdict = self._guard.judge(request.path, address, request.authorization)
        if not verdict:
            return page(request, address)
        self._refuse(verdict, request.path, address)
        if verdict == FORBIDDEN:
            return text_answer(
                403, f"this key has no right to {request.path}; docs/howto/metrics.md names the role it needs"
            )
        return text_answer(401, "an access key is required: basic authentication with its name and secret", CHALLENGE)

    def _refuse(self, reason: str, page: str, address: str) -> None:
        """Count a refusal, and log it at most every LOG_INTERVAL_S."""
        counter = self._refused[reason]
        counter.value += 1
        now_s = asyncio.get_running_loop().time()
        last_s, count = self._logged.get(reason, (now_s - LOG_INTERVAL_S, 0))
        if now_s - last_s >= LOG_INTERVAL_S:
            self._logged[reason] = now_s, counter.value
            self._log.warning(
                "admin_page_refused", page=page[:64], address=address, reason=reason, since_last=counter.value - count
            )

    def _malformed(self) -> None:
        self._refused[MALFORMED].value += 1

    def _ready_page(self, request: Request, address: str) -> Answer:
        parts = dict(self._readiness())
        ready = all(parts.values())
        status = 200 if ready else 503
        if self._guard.judge(READY_PARTS, address, request.authorization, counted=False):
            return _json({"ready": ready}, status)
        reasons = {part: reason for part, reason in self._reasons().items() if reason}
        told = {"reasons": reasons} if reasons else {}
        degraded = {part: words for part, words in self._degraded().items() if words}
        told |= {"degraded": degraded} if degraded else {}
        return _json({"ready": ready, "parts": parts, **told}, status)


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    text = json.dumps(content, indent=2, default=str) + "\n"
    return Answer(status, "application/json; charset=utf-8", text.encode())
