"""The first bytes of a replica's connection: with TLS or without it, then the connection itself begins.

    no certificate    without TLS, at once
    permissive        the first byte decides, or a short silence: a replica without TLS waits for the greeting
    enforcing         with TLS, or not at all

The master sends first on this port, so this takes a moment, unlike on a client's port, where the first request
decides. Invariant: nothing is sent without TLS where it is enforced. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from remoting.server.peer import TLS_HANDSHAKE_BYTE
from remoting.transport.certificates import ENFORCING, ServerTls
from remoting.transport.tls import TlsTransport

PLAIN_AFTER_S = 0.2
"""A connection on which nothing comes for so long is one without TLS."""
TLS_WITHIN_S = 3.0
"""Where TLS is enforced it begins within this time, or the connection is closed."""
UNDECIDED_MAX = 64
"""Connections that have not shown which kind they are; one more ends the oldest."""
BUFFER_BYTES = 256 * 1024

Refused = Callable[[str, str], None]
"""Called with the address of the refused peer and the reason."""


class TlsAcceptor:
    """Makes the protocol of each socket of a listening port."""

    def __init__(self, tls: ServerTls | None, make: Callable[[], asyncio.Protocol], refused: Refused) -> None:
        """`make` gives the protocol that begins when it is known how the socket is spoken on."""
        self.tls = tls
        self.make = make
        self.refused = refused
        self.open: dict[TlsDetection, None] = {}
        """In the order in which they came."""
        # One buffer is enough: the loop fills it and calls `buffer_updated` in the same step.
        self.buffer = memoryview(bytearray(BUFFER_BYTES))

    def __call__(self) -> asyncio.BaseProtocol:
        """The protocol of a new socket."""
        return self.make() if self.tls is None else TlsDetection(self, self.tls)

    def refresh(self, now_ms: int) -> None:
        """See whether the certificate has changed."""
        if self.tls is not None:
            self.tls.refresh(now_ms)

    def reload(self) -> None:
        """Read the certificate again; connections keep what they began with."""
        if self.tls is not None:
            self.tls.reload()

    def close(self) -> None:
        """End what has not begun."""
        for detection in list(self.open):
            detection.abort()


class TlsDetection(asyncio.BufferedProtocol):
    """One socket, until it is known how it is spoken on; afterwards what decrypts for the connection behind it."""

    def __init__(self, acceptor: TlsAcceptor, tls: ServerTls) -> None:
        self._acceptor = acceptor
        self._listener_tls = tls
        self._address = "?"
        self._transport: asyncio.Transport | None = None
        self._secure: TlsTransport | None = None
        self._inner: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte, or for the end of the wait for it."""
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self._address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        if len(self._acceptor.open) >= UNDECIDED_MAX:
            next(iter(self._acceptor.open)).refuse("too many connections that have not begun")
        self._acceptor.open[self] = None
        loop = asyncio.get_running_loop()
        if self._listener_tls.mode == ENFORCING:
            self._timer = loop.call_later(TLS_WITHIN_S, self.refuse, "this port takes TLS only, and none began")
        else:
            self._timer = loop.call_later(PLAIN_AFTER_S, self._plain)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's own signature
        """Where the loop puts what it reads."""
        return self._acceptor.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """The first bytes of all, or encrypted ones."""
        if self._secure is None and not self._begin_tls():
            return
        assert self._secure is not None
        self._secure.received(nbytes)

    def abort(self) -> None:
        """Close the socket without flushing."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Stop sending: the socket's buffer is full."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on to the protocol inside that the socket takes bytes."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """End TLS and the protocol inside; report a handshake that the peer broke off."""
        if self._secure is not None:
            self._secure.lost()
        if self._inner is not None:
            self._inner.connection_lost(error)
        elif self._secure is not None and self in self._acceptor.open:
            self._acceptor.refused(self._address, "it ended its handshake: does it trust this certificate?")
        self._decided()

    def _decided(self) -> None:
        """Its protocol is known: stop counting it as undecided."""
        self._acceptor.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def refuse(self, reason: str) -> None:
        """Close at once and report the reason."""
        self._decided()
        self._acceptor.refused(self._address, reason)
        self.abort()

    def _plain(self) -> None:
        """Nothing came: the connection begins without TLS, and this protocol is out of it."""
        self._decided()
        transport = self._transport
        assert transport is not None
        inner = self._acceptor.make()
        transport.set_protocol(inner)
        inner.connection_made(transport)

    def _begin_tls(self) -> bool:
        """Begin a handshake; False for what begins differently."""
        if self._acceptor.buffer[0] != TLS_HANDSHAKE_BYTE:
            self.refuse("what came first is no TLS")
            return False
        if self._timer is not None:
            self._timer.cancel()
        assert self._transport is not None
        self._secure = TlsTransport(
            self._transport, self._listener_tls.context, self._acceptor.buffer, plain=self._arrived, failed=self._failed
        )
        self._secure.done.add_done_callback(self._shaken)
        self._secure.begin()
        return True

    def _shaken(self, done: asyncio.Future[None]) -> None:
        if done.exception() is None:
            self._begin()

    def _begin(self) -> asyncio.Protocol:
        """The handshake is done: the connection begins."""
        if self._inner is None:
            self._decided()
            self._inner = self._acceptor.make()
            self._inner.connection_made(cast("asyncio.Transport", self._secure))
        return self._inner

    def _arrived(self, size: int) -> None:
        """So many decrypted bytes are in the buffer; they may arrive before the handshake's callback runs."""
        self._begin().data_received(bytes(self._acceptor.buffer[:size]))

    def _failed(self, reason: str) -> None:
        self._decided()
        self._acceptor.refused(self._address, reason)
        if self._transport is not None:
            self._transport.close()
