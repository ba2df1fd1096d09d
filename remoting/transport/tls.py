"""TLS between a link and its socket: what arrives is decrypted into the link's buffer, what it writes is encrypted.

    socket -> get_buffer / buffer_updated -> `received` -> decrypted bytes in the same buffer -> `plain(size)`
    link   -> `write` -> encrypted -> the socket's transport

The link uses it in place of its transport. Until the handshake is done, written bytes wait here and nothing is handed
on. Invariants: no byte passes unencrypted once TLS has begun; a peer that breaks the rules, shows a wrong certificate
or does not finish its handshake in time is closed with a reason, and `failed` is called at most once.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from remoting.transport.failures import reason_of

HANDSHAKE_TIMEOUT_SECONDS = 10.0
"""Longest time from the first byte of TLS to the end of the handshake."""

ENCRYPT_BYTES = 256 * 1024
"""How much is encrypted at once: what OpenSSL grows to hold a piece of this size stays with the connection."""

_MORE = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsTransport:
    """What a link writes to once TLS has begun on its socket."""

    def __init__(
        self,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        buffer: memoryview,
        *,
        plain: Callable[[int], None],
        failed: Callable[[str], None],
        server_name: str | None = None,
    ) -> None:
        """`server_name`: this side is the client and that is whom it wants; None: this side is the server.

        Raises ValueError for a name that cannot be one.
        """
        self._transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._buffer = buffer
        self._plain = plain
        self._failed = failed
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when the handshake is; the SSLError or TimeoutError why it never will be, or SSLEOFError."""

    def begin(self) -> None:
        """Send what begins a handshake, if this side begins; the time runs from now."""
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_SECONDS, self._too_late)
        self._handshake()

    @property
    def version(self) -> str | None:
        """`TLSv1.3` and the like, once it is agreed."""
        return self._object.version()

    def received(self, size: int) -> None:
        """The socket has put `size` bytes into the buffer."""
        if self._ended:
            return
        self._incoming.write(self._buffer[:size])
        if self.done.done() or self._handshake():
            self._read()

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        if self._ended:
            return
        if not self.done.done():
            self._early.append(data)
            self._early_bytes += len(data)
            return
        view = memoryview(data)
        try:
            for at in range(0, len(view), ENCRYPT_BYTES):
                self._object.write(view[at : at + ENCRYPT_BYTES])
                self._send()
        except ssl.SSLError as error:
            self._fail(f"TLS: {reason_of(error)}", error)

    def close(self) -> None:
        """Say that this is the end, then close once everything is out."""
        if self.done.done() and not self._ended:
            with contextlib.suppress(ssl.SSLError):  # the answer to our farewell is not waited for
                self._object.unwrap()
            self._send()
        self._end()
        self._transport.close()

    def abort(self) -> None:
        """Close at once, without a word to the other side."""
        self._end()
        self._transport.abort()

    def lost(self) -> None:
        """The socket is gone."""
        self._end()

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Encrypt and send one after the other."""
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        """Whether nothing can be written any more."""
        return self._ended or self._transport.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told to pause, in encrypted bytes."""
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for the socket, or for the handshake."""
        return self._transport.get_write_buffer_size() + self._early_bytes

    def pause_reading(self) -> None:
        """Read nothing more from the socket."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket's transport knows."""
        return self._transport.get_extra_info(name, default)

    def _handshake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._object.do_handshake()
        except _MORE:
            self._send()
            return False
        except ssl.SSLError as error:  # a certificate that is not trusted is one
            self._send()  # the alert that tells the other side
            self._fail(f"TLS handshake: {reason_of(error)}", error)
            return False
        self._stop_timer()
        self.done.set_result(None)
        self._send()
        early, self._early, self._early_bytes = self._early, [], 0
        for data in early:
            self.write(data)
        return not self._ended

    def _read(self) -> None:
        """Decrypt what there is, a full buffer at a time, and hand it on."""
        more = True
        while more and not self._ended:
            size = 0
            failure = None
            try:
                while size < len(self._buffer):
                    taken = self._object.read(len(self._buffer) - size, self._buffer[size:])
                    if not taken:
                        more = False
                        break
                    size += int(taken)
            except _MORE:
                more = False
            except ssl.SSLZeroReturnError:  # the other side's farewell; its end of the socket follows
                more = False
            except ssl.SSLError as error:
                failure = error
            if size:
                self._plain(size)
            if failure is not None:
                self._send()
                self._fail(f"TLS: {reason_of(failure)}", failure)
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _too_late(self) -> None:
        reason = f"TLS handshake: not finished within {HANDSHAKE_TIMEOUT_SECONDS:g} s"
        self._fail(reason, TimeoutError(reason))

    def _fail(self, reason: str, error: Exception) -> None:
        if self._ended:
            return
        self._never(error)
        self._end()
        self._failed(reason)

    def _end(self) -> None:
        self._ended = True
        self._stop_timer()
        self._early.clear()
        self._early_bytes = 0
        self._never(ssl.SSLEOFError("the connection ended before TLS began"))

    def _never(self, error: Exception) -> None:
        """The handshake will not be done."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # looked at: who does not wait for it need not hear of it

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
