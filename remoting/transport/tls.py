"""TLS between a link and its socket: input is decrypted into the link's buffer, output is encrypted.

    socket -> get_buffer / buffer_updated -> `received` -> decrypted bytes in the same buffer -> `plain(size)`
    link   -> `write` -> encrypted -> the socket's transport

The link uses it in place of its transport. Until the handshake is done, output waits here and nothing is delivered.
Invariants: no byte passes unencrypted once TLS has begun; a peer that breaks the rules, presents a wrong certificate
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
from remoting.transport.patience import PatientTimer

HANDSHAKE_TIMEOUT_SECONDS = 10.0
"""Longest time from the first byte of TLS to the end of the handshake."""

ENCRYPT_BYTES = 256 * 1024
"""Bytes encrypted per call: OpenSSL's buffer grows to this size and stays with the connection."""

_MORE = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsTransport:
    """The transport of a link on whose socket TLS has begun."""

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
        """`server_name`: this side is the client of that server; None: this side is the server.

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
        self._timer: PatientTimer | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the handshake is, or fails with SSLError, SSLEOFError or TimeoutError."""

    def begin(self) -> None:
        """Start the handshake and its time limit; a client sends its first message."""
        self._timer = PatientTimer(HANDSHAKE_TIMEOUT_SECONDS, self._too_late)
        self._handshake()

    @property
    def version(self) -> str | None:
        """The negotiated version, such as `TLSv1.3`; None before."""
        return self._object.version()

    def received(self, size: int) -> None:
        """Process the `size` encrypted bytes that the socket has put into the buffer."""
        if self._ended:
            return
        self._incoming.write(self._buffer[:size])
        if self.done.done() or self._handshake():
            self._read()

    def write(self, data: bytes) -> None:
        """Encrypt and send; before the end of the handshake, keep."""
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
        """Send close_notify, then close once all output is sent."""
        if self.done.done() and not self._ended:
            with contextlib.suppress(ssl.SSLError):  # the peer's close_notify is not awaited
                self._object.unwrap()
            self._send()
        self._end()
        self._transport.close()

    def abort(self) -> None:
        """Close without close_notify."""
        self._end()
        self._transport.abort()

    def lost(self) -> None:
        """Note that the socket has closed."""
        self._end()

    def writelines(self, parts: Iterable[bytes | memoryview]) -> None:
        """Encrypt and send the parts in order."""
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._ended or self._transport.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the protocol is paused and resumed, in encrypted bytes."""
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
        """Return the extra information of the socket's transport."""
        return self._transport.get_extra_info(name, default)

    def _handshake(self) -> bool:
        """Continue the handshake; return whether it is done."""
        try:
            self._object.do_handshake()
        except _MORE:
            self._send()
            return False
        except ssl.SSLError as error:  # includes an untrusted certificate
            self._send()  # the alert to the peer
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
        """Decrypt the input, a full buffer at a time, and deliver it."""
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
            except ssl.SSLZeroReturnError:  # the peer's close_notify; it closes the socket next
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
        """Fail the handshake's future."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved, so that asyncio does not report it when nothing awaits it

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
