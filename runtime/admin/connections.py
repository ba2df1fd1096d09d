"""Connections of the administration port: few, prompt, small, and without a word about versions.

    waiting   a request must be whole within its time, in a buffer of HEAD_BYTES_MAX that never grows
    answering one page after the other, each in a turn of the loop of its own; while the socket does not take one,
              nothing is read, and it must be taken within its time

When there are too many, the one that was served the longest ago goes, so that nobody can lock out a supervisor by
holding connections. Invariants: what a peer costs before anybody knows who it is, is one buffer and one small answer;
every state has its time. Loop rule: all on the loop's thread; pages are made at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from runtime.admin.http_head import END, HEAD_BYTES_MAX, BadRequest, Request, parse_head

LOG = logging.getLogger("admin")
SERVER_NAME = "LightMQ"
CONNECTIONS_MAX = 256
"""Connections at one time; one more ends the one that was served the longest ago."""
FIRST_REQUEST_S_MAX = 10.0
"""A connection that has made no whole request within this time is closed."""
KEEP_ALIVE_S = 15.0
"""How long a connection may take to make its next request."""
ANSWER_S_MAX = 20.0
"""How long a client may take to read an answer."""
METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """A page, or why there is none."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A sentence for people."""
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers or {})


Pages = Callable[[Request, str], Answer]
"""(request, address of the peer) -> answer."""


class PageConnections:
    """Makes the protocol of each socket of the port, and ends those that are too many."""

    def __init__(self, pages: Pages, malformed: Callable[[], object]) -> None:
        """`malformed` is told of each request that cannot be read."""
        self.pages = pages
        self.malformed = malformed
        self._open: dict[PageConnection, None] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a new socket."""
        return PageConnection(self)

    def __len__(self) -> int:
        return len(self._open)

    def made(self, connection: PageConnection) -> None:
        """One more."""
        self._open[connection] = None
        while len(self._open) > CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.abort()

    def served(self, connection: PageConnection) -> None:
        """It has had an answer: others go before it."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def lost(self, connection: PageConnection) -> None:
        """It has ended."""
        self._open.pop(connection, None)

    def close(self) -> None:
        """End all of them."""
        for connection in list(self._open):
            connection.abort()


class PageConnection(asyncio.BufferedProtocol):
    """One socket."""

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
        """Where the loop puts what it reads; there is room, because a full buffer ends the connection."""
        return memoryview(self._buffer)[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        """More of a request."""
        self._held += nbytes
        self._serve()

    def pause_writing(self) -> None:
        """The socket has not taken the whole answer: nothing more is read until it has."""
        self._answering = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._due(ANSWER_S_MAX)

    def resume_writing(self) -> None:
        """It has; the next request may be here already."""
        self._answering = False
        self._due(KEEP_ALIVE_S)
        self._take_turn()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's own signature
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._connections.lost(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _due(self, seconds: float) -> None:
        """What is waited for now must come within this time."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = self._loop.call_later(seconds, self.abort)

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _take_turn(self) -> None:
        """Go on in the loop's next turn, when other connections have had theirs; until then nothing is read."""
        if self._open and not self._turn_due:
            assert self._transport is not None
            self._turn_due = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Serve what is here, then read again: in this order, because the buffer may be full."""
        self._turn_due = False
        self._serve()
        if self._open and not self._answering and not self._turn_due:
            assert self._transport is not None
            self._transport.resume_reading()

    def _serve(self) -> None:
        """Answer one request, if a whole one is here and the socket has taken the answer before."""
        if not self._open or self._answering:
            return
        end = self._buffer.find(END, 0, self._held)
        if end < 0:
            if self._held == HEAD_BYTES_MAX:
                self._refuse(BadRequest(431, f"a request has {HEAD_BYTES_MAX} bytes at most"))
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
            answer = text_answer(405, "this port only shows pages", {"Allow": ", ".join(METHODS)})
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
            return text_answer(500, "the page could not be made; the log says why")

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
