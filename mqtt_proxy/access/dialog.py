"""The AUTH packets of one client: enhanced authentication at CONNECT, and again later.

    CONNECT (method, first message) -> AUTH challenge -> AUTH (proof) -> CONNACK with the server's proof
    AUTH re-authenticate            -> AUTH challenge -> AUTH (proof) -> AUTH success, or DISCONNECT

Invariant: a client that proves itself again must be the same user; anything else ends the connection. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

import asyncio

from mqtt_proxy.access.contract import AccessControl
from mqtt_proxy.access.exchange import Exchange, Proven
from mqtt_proxy.listening.client_connection import ClientConnection
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import AuthReceived
from remoting.access.identity import Identity, Shown, Unproven


class Dialog:
    """One client's steps."""

    __slots__ = ("_access", "_again", "_answer", "_wire", "proof")

    def __init__(self, wire: ClientConnection, access: AccessControl) -> None:
        self._wire = wire
        self._access = access
        self._answer: asyncio.Future[AuthReceived | None] | None = None
        self._again: Exchange | None = None
        self.proof: bytes | None = None
        """The server's own proof, for the CONNACK."""

    async def prove(self, method: str, data: bytes | None, shown: Shown) -> Identity | Unproven | None:
        """Whom a CONNECT with this method proves; None when the method is not offered."""
        exchange = self._access.begin_exchange(method, shown)
        if exchange is None:
            return None
        challenge = exchange.challenge(data)
        if isinstance(challenge, Unproven):
            return challenge
        self._answer = asyncio.get_running_loop().create_future()
        self._challenge(challenge)
        answer = await self._answer
        self._answer = None
        if answer is None:
            return Unproven.LEFT
        outcome = exchange.prove(answer.data)
        if isinstance(outcome, Unproven):
            return outcome
        self.proof = outcome.proof
        return outcome.identity

    def received(self, event: AuthReceived, identity: Identity | None, shown: Shown) -> None:
        """A step of the client; `identity` is whose the connection is, once that is known."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(event)
        elif event.reason == ReasonCode.RE_AUTHENTICATE:
            self._begin_again(event, shown)
        elif self._again is not None:
            exchange, self._again = self._again, None
            outcome = exchange.prove(event.data)
            if isinstance(outcome, Proven) and identity is not None and outcome.identity.name == identity.name:
                self._wire.session.answers.reauthenticated(outcome.proof)
                self._wire.flush()
            else:
                self._refuse()

    def end(self) -> None:
        """The connection has ended: nobody answers any more."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _begin_again(self, event: AuthReceived, shown: Shown) -> None:
        self._again = self._access.begin_exchange(event.method, shown)
        challenge = Unproven.DENIED if self._again is None else self._again.challenge(event.data)
        if isinstance(challenge, Unproven):
            self._refuse()
        else:
            self._challenge(challenge)

    def _challenge(self, data: bytes) -> None:
        self._wire.session.answers.challenge(data)
        self._wire.flush()

    def _refuse(self) -> None:
        self._again = None
        self._wire.session.answers.disconnect(ReasonCode.NOT_AUTHORIZED)
        self._wire.flush()
