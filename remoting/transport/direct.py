"""Publishes, sessions and news between a proxy and a broker of the same process, as objects instead of frames.

Both sides offer it beside their frames and neither needs it: a connection over a socket has none, and then everything
goes by APPEND_MANY, SESSION_OPEN, SUBSCRIBE, SESSION_CLOSE and NOTIFY. It carries what is hot only; all else stays a
frame.
Invariant: the promises are those of the frames. `stored` is called once, never inside `append`, with None only when the
messages are confirmed; the answers about sessions are given once too, also inside the call when nothing has to be
waited for; what was sent on the connection before is handled before. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from remoting.protocol.bodies.session_body import SessionClose, SessionOpen, SessionOpened, Subscribed, SubscribeRequest
from remoting.transport.contracts import Peer

T = TypeVar("T")

NEWS_ATTRIBUTE = "news"
"""Where a peer of this process keeps the `News` its followed queues are told by."""

Stored = Callable[[Exception | None], None]
"""Called once: None, or the `Refused` that an APPEND_MANY would have been answered with."""

News = Callable[[Sequence[tuple[int, int]], Sequence[bytes]], None]
"""(queue id, confirmed end) of followed queues that moved, and blobs of records just confirmed, in log order.

Records of other queues may be among them, and any may be missing."""


Said = Callable[[T | None, Exception | None], None]
"""Called once: an answer that is confirmed and None, or None and the `Refused` that a frame would be answered with."""


class DirectPort(Protocol):
    """A broker of this process."""

    @property
    def open(self) -> bool:
        """Whether everybody may publish; if not, frames go through the checks."""

    def append(self, images: bytes, stored: Stored) -> None:
        """Append the messages of these record images, in order; `stored` follows."""

    def session_open(self, peer: Peer, request: SessionOpen, said: Said[SessionOpened]) -> None:
        """Take a client's session for the proxy at `peer`."""

    def subscribe(self, wanted: Sequence[tuple[SubscribeRequest, Said[Subscribed]]]) -> None:
        """Subscribe many sessions; what of that goes into the log goes there together."""

    def session_close(self, request: SessionClose, said: Said[int]) -> None:
        """Give a session back; the answer is a log position and says nothing."""
