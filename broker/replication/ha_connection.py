"""One replica's socket at its master: greeting, hello, what it says, and the log it is sent.

    connection --Hello--> welcome or refusal --Ready--> acknowledgements in, parts of the log out

Invariant: before it is welcomed it costs one small frame at most, for a short time (`ha_server`). Loop rule: on the
loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, cast

from broker.replication.decoder import Decoder
from broker.replication.frames import (
    FROM_REPLICA,
    NO_PROOF_GIVEN,
    Ack,
    Frame,
    Greeting,
    Hello,
    Ready,
    Refusal,
    encode_greeting,
    encode_refusal,
    encode_welcome,
)
from broker.replication.proof import NONCE_BYTES, prove
from remoting.protocol.errors import RemoteViolation
from remoting.transport.turn import turn_of

if TYPE_CHECKING:
    from broker.replication.ha_server import HaServer


class ReplicaConnection(asyncio.Protocol):
    """One socket of a replica."""

    def __init__(self, server: HaServer) -> None:
        self.number = server.next_id()
        self.address = ""
        self.broker = 0
        self.access_key = ""
        self.since_ms = server.now_ms()
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        self.secret: str | None = None
        self.is_replica = False
        """Whether it has been welcomed."""
        self.has_room = True
        self._server = server
        self._decoder = Decoder(FROM_REPLICA)
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the first word."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)  # at once, and what the socket does not take is the last
        name = transport.get_extra_info("peername")
        self.address = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        if not self._server.has_room():
            self._server.refused += 1
            self.abort("too many connections")
            return
        self._server.connections.add(self)
        self.send(encode_greeting(Greeting(self.nonce)))

    def data_received(self, data: bytes) -> None:
        """Frames of the replica; one that breaks the rules ends its connection."""
        turn = turn_of(asyncio.get_running_loop())
        turn.hold()
        has_acknowledged = False
        try:
            for frame in self._decoder.feed(data):
                if isinstance(frame, Ack):
                    self._server.acknowledged(self, frame)
                    has_acknowledged = True
                else:
                    self._received(frame)
            if has_acknowledged:
                self._server.advance(self)
        except RemoteViolation as violation:
            self.abort(violation.reason)
        finally:
            turn.run()

    def _received(self, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._hello(frame)
        elif isinstance(frame, Ready):
            refusal = self._server.ready(self, frame)
            if refusal is not None:
                self.refuse(refusal)

    def _hello(self, hello: Hello) -> None:
        if self.is_replica:
            raise RemoteViolation("a second hello")
        self.broker, self.access_key = hello.broker, hello.access_key
        answer = self._server.greet(self, hello)
        if isinstance(answer, Refusal):
            self.refuse(answer)
            return
        self.is_replica = True
        self._server.log_welcome(self, hello)
        self.send(encode_welcome(answer, lambda content: prove(self.secret, hello.nonce, content)))

    def refuse(self, refusal: Refusal) -> None:
        """Say why there is no stream, and close."""
        self._server.refused += 1
        if refusal.reason == NO_PROOF_GIVEN:
            self._server.unproven_refused(self, refusal.remark)
        self._reason = refusal.remark
        self.send(encode_refusal(refusal))
        if self._transport is not None:
            self._transport.close()

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Queue bytes; those of the log are not copied, a file that is dropped meanwhile stays mapped until then."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((head, data)) if len(data) else self._transport.write(head)

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.has_room = False

    def resume_writing(self) -> None:
        """It does again."""
        self.has_room = True
        self._server.refill(self)

    def connection_lost(self, error: Exception | None) -> None:
        """It has ended."""
        self._transport = None
        self._server.gone(self)
        if self.is_replica:
            self._server.log_gone(self, self._reason or str(error or "closed by the replica"))
