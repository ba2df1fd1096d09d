"""What is said to the broker about sessions: as calls to a broker of this process, else as frames.

    open       at once; where the broker is in this process its answer is mostly there when the call returns
    subscribe  gathered for a turn of the loop: a fleet that connects makes its queues with one record of the log
    close      at once; what the broker has not confirmed yet is waited for by a proxy that stops

Invariant: requests about one client id are carried out in the order in which they were made, and behind what clients of
this proxy published before. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mqtt_proxy.link.link import LinkDownError
from remoting.protocol.bodies.session_body import (
    SessionClose,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.transport.turn import soon

if TYPE_CHECKING:
    import msgspec

    from mqtt_proxy.link.link import Link
    from mqtt_proxy.publishing.publisher import Publisher
    from remoting.transport.direct import Said

    S = TypeVar("S", bound=msgspec.Struct)


class SessionCalls:
    """The sessions of one proxy, towards its broker."""

    def __init__(self, link: Link, publisher: Publisher, keep: Callable[[asyncio.Future[bytes]], None]) -> None:
        """`keep` holds what a stopping proxy waits for."""
        self._link = link
        self._publisher = publisher
        self._keep = keep
        self._gathered: list[tuple[SubscribeRequest, Said[Subscribed]]] = []
        self._gathered_ids: set[str] = set()
        self._begun: list[Callable[[], None]] = []

    def open(self, request: SessionOpen, said: Said[SessionOpened]) -> None:
        """Take a session; `said` hears what to resume, a refusal or LinkDownError, perhaps inside this call."""
        if request.client_id in self._gathered_ids:
            self._send()
        direct = self._link.direct
        if direct is not None:
            direct.session_open(request, said)
        else:
            self._frame(RequestCode.SESSION_OPEN, request, SessionOpened, said)

    def subscribe(self, request: SubscribeRequest, begun: Callable[[], None], said: Said[Subscribed]) -> None:
        """Subscribe in this turn; `begun` is called when the request leaves, `said` as in `open`, both later."""
        if self._publisher.has_gathered:
            self._send()
            self._publisher.go_on()
        if not self._gathered:
            soon(self._send)
        self._gathered.append((request, said))
        self._gathered_ids.add(request.client_id)
        self._begun.append(begun)

    def close(self, request: SessionClose) -> None:
        """Give a session back. Raises LinkDownError."""
        if request.client_id in self._gathered_ids:
            self._send()
        direct = self._link.direct
        if direct is None:
            self._keep(self._link.post(RequestCode.SESSION_CLOSE, encode(request)))
            return
        answer = _Answer()
        direct.session_close(request, answer.said)
        if not answer.is_there:
            self._keep(answer.awaited())

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        begun, self._begun = self._begun, []
        self._gathered_ids.clear()
        if not gathered:
            return
        for leave in begun:
            leave()
        direct = self._link.direct
        if direct is not None:
            direct.subscribe(gathered)
            return
        for request, said in gathered:
            self._frame(RequestCode.SUBSCRIBE, request, Subscribed, said)

    def _frame(self, code: int, request: msgspec.Struct, kind: type[S], said: Said[S]) -> None:
        try:
            self._link.call(code, encode(request), partial(_decoded, kind, said))
        except LinkDownError as error:
            said(None, error)


def _decoded(kind: type[S], said: Said[S], body: bytes, error: Exception | None) -> None:
    """Hand the reply of a frame on as what it says."""
    answer = None
    if error is None:
        try:
            answer = decode(kind, body)
        except LightMQError as wrong:
            error = wrong
    said(answer, error)


class _Answer:
    """An answer nobody reads, but that may have to be waited for."""

    __slots__ = ("_future", "is_there")

    def __init__(self) -> None:
        self.is_there = False
        self._future: asyncio.Future[bytes] | None = None

    def said(self, _position: int | None, _error: Exception | None) -> None:
        """Whatever it is, it is there."""
        self.is_there = True
        if self._future is not None and not self._future.done():
            self._future.set_result(b"")

    def awaited(self) -> asyncio.Future[bytes]:
        """Ends when it is there."""
        self._future = asyncio.get_running_loop().create_future()
        return self._future
