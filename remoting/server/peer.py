"""One client's socket on the server's side: commands in, replies and pushes out; its first bytes tell TLS and others.

Invariant: nothing a peer sends can raise into the loop or touch another peer.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.access import PROVED_ATTRIBUTE, Access
from remoting.server.foreign import FIRST_BYTES, foreign
from remoting.server.intake import REFUSALS, Intake
from remoting.server.tls import ENFORCING, ServerTls
from remoting.transport.answering import answer
from remoting.transport.contracts import Handler, Peer
from remoting.transport.link import LOG, FrameLink, LinkSettings

__all__ = ["Handler", "Peer", "SocketPeer"]

REFUSALS_MAX = 100
"""Refusals sent to a peer that has to authenticate and has not; one more closes the connection. They cost memory while
they wait to be read."""
TLS_HANDSHAKE_BYTE = 0x16
"""First byte of a TLS connection. A frame cannot start with it: that would be a length above 368 MB."""


class SocketPeer(FrameLink):
    """A `Peer` on a socket. `made` and `lost` tell the server about its coming and going."""

    pauses_reading = True

    def __init__(
        self,
        handler: Handler,
        settings: LinkSettings,
        made: Callable[[SocketPeer], bool],
        lost: Callable[[SocketPeer, str], None],
        tls: ServerTls | None = None,
        intake: Intake | None = None,
        access: Access | None = None,
    ) -> None:
        super().__init__(settings)
        self._intake = intake or Intake()
        self._access = access or Access()
        self.begun = False
        """Whether a frame has begun and not ended."""
        self.frames_in = 0
        """Whole frames so far."""
        self._refusals_left = REFUSALS_MAX
        self.loopback = False
        self.reached_at: tuple[str, int] | None = None
        """Our own end of the connection; None for sockets without a port."""
        self.attributes: dict[str, object] = {}
        self.unasked_answers = 0
        self._handler = handler
        self._made = made
        self._lost_callback = lost
        self._first_byte_due = True
        self._listener_tls = tls
        self._plain_refused = tls is not None and tls.mode == ENFORCING

    def link_made(self) -> None:
        """Find out where the peer is, then ask the server whether there is room for it."""
        self.loopback = is_loopback(self.address)
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        self.reached_at = (name[0], name[1]) if isinstance(name, tuple) else None
        if not self._made(self):
            self.abort("too many connections")

    def close(self, reason: str) -> None:
        """Send what is queued, then close."""
        self.end(reason)

    def buffer_updated(self, nbytes: int) -> None:
        """Look at the first byte of all, then read frames."""
        if self._first_byte_due:
            self._first_byte_due = False
            if self._receive_buffer[0] == TLS_HANDSHAKE_BYTE:
                self.tls_requested()
            elif reason := foreign(bytes(self._receive_buffer[: min(nbytes, FIRST_BYTES)])):
                self._counters.foreign += 1
                self.violated(reason)
        super().buffer_updated(nbytes)

    @property
    def proved(self) -> bool:
        """Whether its requests carry a proof, or need none."""
        return PROVED_ATTRIBUTE in self.attributes or self._access.trusts(self)

    @property
    def idle(self) -> bool:
        """Whether nothing is read from it now."""
        return self._reading_held or not self._writable

    def host(self) -> str:
        """Its address without the port."""
        return self.address.rpartition(":")[0]

    def names_key(self) -> bool:
        """Whether the unfinished frame has a header that names a known key."""
        try:
            head = self._decoder.unfinished_head()
        except RemoteViolation:
            return False
        return head is not None and self._access.knows(head)

    def refused(self) -> None:
        """A request was refused for lack of a right; who has proved no key is refused so often and no more."""
        if self.proved or self.closed:
            return
        if not self._refusals_left:
            self._intake.refused[REFUSALS] += 1
            self.cut(f"{REFUSALS}: {REFUSALS_MAX} requests refused and no key proved")
        self._refusals_left -= 1

    def cut(self, reason: str) -> None:
        """Close at once a connection whose frame costs too much."""
        LOG.warning("connection with %s cut: %s", self.address, reason)
        self.abort(reason)

    def _bytes_received(self, nbytes: int) -> None:
        before = self._counters.frames_in
        super()._bytes_received(nbytes)
        frames = self._counters.frames_in - before
        self.frames_in += frames
        held = self._decoder.buffered_bytes
        if held or self.begun:
            self._account(held, whole=frames > 0)

    def _account(self, held: int, *, whole: bool) -> None:
        """So many bytes of a frame are held, after others or this one became whole."""
        now_s = self._loop.time()
        if self.begun and (whole or not held):
            self._intake.finished(self, now_s)
        self.begun = bool(held) and not self.closed
        if self.begun:
            reason = self._intake.progress(self, held, self._decoder.frame_bytes, now_s)
            if reason:
                self.cut(f"{reason}: {held} bytes of an unfinished frame of {self._decoder.frame_bytes}")

    def tls_requested(self) -> None:
        """The peer starts a TLS handshake."""
        if self._listener_tls is None:
            self.violated("the peer speaks TLS, but this port has no certificate configured")
            return
        self._plain_refused = False
        self.start_tls(self._listener_tls.context)

    def command_received(self, command: Command) -> None:
        """Answer a request; answers to requests nobody made are counted and dropped."""
        if self._closing is not None:
            return  # it came in the same read as the request that ended the connection
        if command.is_response:
            self.unasked_answers += 1
            return
        if self._plain_refused:
            self.send(command.reply(ResponseCode.NO_PERMISSION, "this port takes TLS only: connect with TLS"))
            self.violated("the peer does not speak TLS, which this port wants")
            return
        answer(self._handler, self, command)

    def link_lost(self, reason: str) -> None:
        """Tell the server."""
        self._intake.finished(self, self._loop.time())
        self._lost_callback(self, reason)


def is_loopback(address: str) -> bool:
    """True when `host:port` (or a local socket) is on this machine."""
    host = address.rpartition(":")[0]
    if not host:
        return address == "local"
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
