"""Requests to the broker about sessions: each leaves at once, its answer comes later in its own shape.

Invariant: requests about one client id are carried out in the order in which they were made, and a SUBSCRIBE behind
what clients of this proxy published before, unless that waits for the disk. Loop rule: on the loop's thread.
"""

from __future__ import annotations

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
    import asyncio

    import msgspec

    from mqtt_proxy.link.link import Link
    from mqtt_proxy.publishing.publisher import Publisher

    S = TypeVar("S", bound=msgspec.Struct)

T = TypeVar("T")
Answered = Callable[[T | None, Exception | None], None]
"""Called once, never inside the request: the answer and None, or None and `Refused`, `LinkDownError` or what is wrong
with the answer."""


class SessionCalls:
    """The sessions of one proxy, towards its broker."""

    def __init__(self, link: Link, publisher: Publisher, keep: Callable[[asyncio.Future[bytes]], None]) -> None:
        """`keep` holds what a stopping proxy waits for."""
        self._link = link
        self._publisher = publisher
        self._keep = keep

    def open(self, request: SessionOpen, answered: Answered[SessionOpened]) -> None:
        """Take a session; the answer says what to resume."""
        self._call(RequestCode.SESSION_OPEN, request, SessionOpened, answered)

    def subscribe(self, request: SubscribeRequest, answered: Answered[Subscribed]) -> None:
        """Subscribe, behind what has been published."""
        self._publisher.go_on()
        self._call(RequestCode.SUBSCRIBE, request, Subscribed, answered)

    def close(self, request: SessionClose) -> None:
        """Give a session back. Raises LinkDownError."""
        self._keep(self._link.post(RequestCode.SESSION_CLOSE, encode(request)))

    def _call(self, code: int, request: msgspec.Struct, kind: type[S], answered: Answered[S]) -> None:
        try:
            self._link.call(code, encode(request), partial(_decoded, kind, answered))
        except LinkDownError as error:
            soon(answered, None, error)


def _decoded(kind: type[S], answered: Answered[S], body: bytes, error: Exception | None) -> None:
    answer = None
    if error is None:
        try:
            answer = decode(kind, body)
        except LightMQError as wrong:
            error = wrong
    answered(answer, error)
