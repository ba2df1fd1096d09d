"""Whether a CONNECT may have its session: its identity, and whether that identity may leave this will.

Enhanced authentication goes by AUTH packets, at CONNECT and again later:

    CONNECT (method, first message) -> AUTH challenge -> AUTH (proof) -> CONNACK with the server's proof
    AUTH re-authenticate            -> AUTH challenge -> AUTH (proof) -> AUTH success, or DISCONNECT

Invariants: a refusal has a code for the CONNACK and a reason for its counter. A server too busy to check a password
answers so, which reveals nothing about the password. A client that authenticates again must be the same user; anything
else ends the connection. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from mqtt_proxy.access.auth import AccessControl, Exchange, Proven
from mqtt_proxy.listening.connection import ClientConnection
from mqtt_proxy.listening.peer import RemoteAddress
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from mqtt_proxy.mqtt.session.events import AuthReceived, ConnectRequested, Will
from mqtt_proxy.quotas import Quotas
from remoting.access.rules import Action, Identity, Shown, Unproven
from remoting.protocol.records.topics import says_something_else


class Dialog:
    """The authentication steps of one client."""

    __slots__ = ("_access", "_again", "_answer", "_wire", "proof")

    def __init__(self, wire: ClientConnection, access: AccessControl) -> None:
        self._wire = wire
        self._access = access
        self._answer: asyncio.Future[AuthReceived | None] | None = None
        self._again: Exchange | None = None
        self.proof: bytes | None = None
        """The server's own proof, for the CONNACK."""

    async def prove(self, method: str, data: bytes | None, shown: Shown) -> Identity | Unproven | None:
        """The identity that a CONNECT with this method proves; None when the method is not offered."""
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
        """A step of the client; `identity` is that of the connection, once it is known."""
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
        """The connection has ended: no further step is answered."""
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


class Caller(Protocol):
    """What admission needs of the connection."""

    peer: RemoteAddress

    def peer_left(self) -> bool:
        """Whether the client has closed its side."""


@dataclass(slots=True, frozen=True)
class ConnectRefusal:
    """The code of the CONNACK, and the reason that is counted."""

    code: int
    reason: str


def at_hand(
    access: AccessControl, event: ConnectRequested, caller: Caller, present: Callable[[], bool]
) -> Identity | ConnectRefusal | None:
    """The result of `admit` if nothing has to be waited for; else None."""
    if caller.peer.over_connect_rate:
        return ConnectRefusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "connect_rate")
    if event.auth_method is not None:
        return None
    identity = access.at_hand(shown_by(event, caller, present))
    return None if identity is None else _judged(access, event, identity)


async def admit(
    access: AccessControl, event: ConnectRequested, caller: Caller, present: Callable[[], bool], dialog: Dialog
) -> Identity | ConnectRefusal:
    """The identity of a CONNECT that may proceed, or its refusal; costs nothing for one that is not `present`."""
    if caller.peer.over_connect_rate:
        return ConnectRefusal(ReasonCode.CONNECTION_RATE_EXCEEDED, "connect_rate")
    shown = shown_by(event, caller, present)
    identity: Identity | Unproven | None
    if event.auth_method is not None:
        identity = await dialog.prove(event.auth_method, event.auth_data, shown)
        if identity is None:
            return ConnectRefusal(ReasonCode.BAD_AUTHENTICATION_METHOD, "auth_method")
        if identity is Unproven.DENIED:
            return ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "authentication")
    else:
        identity = await access.authenticate(shown)
    return _judged(access, event, identity)


def _judged(access: AccessControl, event: ConnectRequested, identity: Identity | Unproven) -> Identity | ConnectRefusal:
    if identity is Unproven.DENIED:
        code = ReasonCode.NOT_AUTHORIZED if event.username is None else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        return ConnectRefusal(code, "authentication")
    if isinstance(identity, Unproven):
        return ConnectRefusal(ReasonCode.SERVER_BUSY, identity.value)
    if event.bridge:
        identity = replace(identity, bridge=True)
    will = event.will
    if will is not None and not _may_leave(access, identity, will):
        return ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "will_topic")
    return identity


def _may_leave(access: AccessControl, identity: Identity, will: Will) -> bool:
    if says_something_else(will.topic, will.payload):
        return False
    return bool(access.authorize(identity, Action.WILL, will.topic, qos=will.qos, retain=will.retain))


PAIR_BYTES = 128
"""What a user property costs beside its bytes: a pair and two objects; its bytes may be fewer."""


def held_bytes(event: ConnectRequested) -> int:
    """How much of the memory a CONNECT takes while it waits: all that the client has sent."""
    will, user = event.will, event.user
    texts = [event.client_id, event.username, event.password, event.auth_method, event.auth_data]
    if will is not None:
        texts += [will.topic, will.payload]
        if will.properties is not None:
            named = will.properties
            texts += [named.content_type, named.response_topic, named.correlation_data]
            user = user + named.user
    return sum(len(text) for text in texts if text) + sum(len(k) + len(v) + PAIR_BYTES for k, v in user)


def shown_by(event: ConnectRequested, caller: Caller, present: Callable[[], bool]) -> Shown:
    """The credentials in a CONNECT."""
    return Shown(
        client_id=event.client_id,
        username=event.username,
        password=event.password,
        loopback=caller.peer.loopback,
        address=caller.peer.address,
        certificate=caller.peer.certificate_name,
        size_bytes=held_bytes(event),
        wanted=lambda: present() and not caller.peer_left(),
    )


def join(quotas: Quotas, admitted: Identity | ConnectRefusal, event: ConnectRequested) -> Identity | ConnectRefusal:
    """Count an admitted client for its user, or refuse it after all; `leave` when its connection ends.

    Anonymous clients have no owner.
    """
    if isinstance(admitted, ConnectRefusal):
        return admitted
    will = event.will
    if will is not None and will.retain and quotas.retained_too_large(len(will.payload)):
        return ConnectRefusal(ReasonCode.QUOTA_EXCEEDED, "retained_payload")
    if admitted.anonymous or quotas.join(admitted.name, event.client_id):
        return admitted
    return ConnectRefusal(ReasonCode.QUOTA_EXCEEDED, "connections_per_user_max")


def leave(quotas: Quotas, identity: Identity, client_id: str) -> None:
    """Remove a client that `join` counted."""
    if not identity.anonymous:
        quotas.leave(identity.name, client_id)
