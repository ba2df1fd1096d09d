"""Authentication: the identity of a CONNECT, by methods in their configured order or by AUTH packets.

    a method returns   an identity: admitted       Unproven: refused, no further method is tried       None: not mine
    none decides       without user name, or without any method, from loopback: anonymous; all others are refused

MQTT 5's enhanced authentication is SCRAM-SHA-256 with the credentials of the password file (`Exchange`). A token or a
hook supplies groups and rules with a name (`texts`, `rules_of`). `AccessControl` is what the rest of the proxy uses;
`gate.Gate` implements it.

Invariants: fails closed: a method that fails refuses, and a claim that cannot be understood is an error and never
ignored, since it may have been a deny. Only the final proof of an exchange makes an identity. Every answer is counted,
every refusal logged without secrets, by the method that refuses. A client whose proof was not looked at, because too
many wait, the service is away or it left, has not failed: it is counted and logged by other names.
Loop rule: on the loop's thread; a step of an exchange costs microseconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from mqtt_proxy.access.scram import MECHANISM, NONCE_BYTES, ScramError, ScramServer
from mqtt_proxy.metrics import AccessCounters
from remoting.access.acl_file import parse_lines
from remoting.access.rules import Identity, Rule, RuleSet, Shown, Unproven, Verdict
from remoting.protocol.errors import LightMQError
from runtime.files import WatchedFile
from runtime.logs import get_logger

NAME_BYTES_MAX = 256
"""Longest user or group name."""
GROUPS_MAX = 64
RULES_MAX = 256
"""Most groups and rules of one identity; with more the client is refused."""


class ClaimError(LightMQError):
    """A claim or attribute cannot be used; the text contains no value of it."""


def is_name(value: object) -> bool:
    """Whether this is a valid name of a user or group."""
    return (
        isinstance(value, str) and value.isprintable() and 0 < len(value.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    )


def texts(value: object, count_max: int = GROUPS_MAX, what: str = "groups") -> tuple[str, ...]:
    """A list of names. Raises BroughtError for anything else."""
    if not isinstance(value, list) or len(value) > count_max or not all(map(is_name, value)):
        raise ClaimError(f"its {what} are not a list of at most {count_max} names")
    return tuple(value)


def rules_of(value: object, place: str) -> tuple[Rule, ...]:
    """Rules in the syntax of an access list behind `pattern`. Raises BroughtError or AclError."""
    if value is None:
        return ()
    if not isinstance(value, list) or not 0 < len(value) <= RULES_MAX or not all(isinstance(one, str) for one in value):
        # An empty list would be no rules at all, which without an access list allows everything.
        raise ClaimError(f"its rules are not a list of 1 to {RULES_MAX} texts")
    return parse_lines(value, place)


METHOD = "scram"
"""The metric label."""


@dataclass(slots=True, frozen=True)
class Proven:
    """A successful exchange: its identity, and the server's own proof."""

    identity: Identity
    proof: bytes


class Exchanges:
    """Starts exchanges."""

    def __init__(
        self,
        stored: Callable[[str], str | None] | None,
        counters: AccessCounters,
        like: Callable[[str], str | None] = lambda _username: None,
    ) -> None:
        """`stored` returns a user's credential (None: there is no password file), `like` one for an unknown user."""
        self._stored = stored
        self._like = like
        self._counters = counters
        self._decoy_key = secrets.token_bytes(32)
        self._log = get_logger("mqtt_proxy.auth")

    def begin(self, method: str, shown: Shown) -> Exchange | None:
        """An exchange by this authentication method; None when it is not offered."""
        if method != MECHANISM or self._stored is None:
            return None
        server = ScramServer(
            self._stored, nonce=secrets.token_bytes(NONCE_BYTES), decoy_key=self._decoy_key, like=self._like
        )
        return Exchange(server, shown, self._ended)

    def _ended(self, shown: Shown, user: str, why: str) -> None:
        result = "denied" if why else "accepted"
        self._counters.authentications.child(result, METHOD).value += 1
        if why:
            self._log.warning("mqtt_authentication_failed", user=user, peer=shown.address, method=METHOD, why=why)


class Exchange:
    """The steps of one client."""

    def __init__(self, server: ScramServer, shown: Shown, ended: Callable[[Shown, str, str], None]) -> None:
        self._server = server
        self._shown = shown
        self._ended = ended

    def challenge(self, data: bytes | None) -> bytes | Unproven:
        """The answer to the client's first message."""
        try:
            return self._server.first(data or b"")
        except ScramError as error:
            return self._refuse(str(error))

    def prove(self, data: bytes | None) -> Proven | Unproven:
        """The answer to its last one."""
        try:
            proof = self._server.final(data or b"")
        except ScramError as error:
            return self._refuse(str(error))
        user = self._server.username
        if proof is None:
            return self._refuse("the proof is wrong, or there is no such user")
        if any(other and other != user for other in (self._shown.username, self._shown.certificate)):
            return self._refuse("the user name of the CONNECT, or of the certificate, is another")
        self._ended(self._shown, user, "")
        return Proven(Identity(user, anonymous=False, client_id=self._shown.client_id), proof)

    def _refuse(self, why: str) -> Unproven:
        self._ended(self._shown, self._server.username, why)
        return Unproven.DENIED


class AccessControl(Protocol):
    """Authentication and authorization as sessions use them."""

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The result of `authenticate` if it is available without waiting; None when it is not."""

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """The identity, or the reason of a refusal."""

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """An enhanced authentication by this method; None when it is not offered."""

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """Whether the identity may do this with the topic or filter; a refusal is counted and logged."""

    def decide(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """The same without counting and logging, for those who only ask."""

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages the identity may publish to the topic, as bits of `rules.write_bit`; nothing is counted."""

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """How messages of the topic may be read, as bits of `rules.READ_LIVE` and so on; nothing is counted."""


class Waits(Enum):
    """Stands for an answer that has to be waited for."""

    LATER = "later"


class Method(Protocol):
    """One way to prove an identity."""

    name: str
    """The name in the configuration and as metric label."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """The result of `check` if it is available without waiting; else `Waits.LATER`, and nothing was done."""

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The identity this proves, why it proves none, or None when it is for another method to decide."""

    def refresh(self) -> None:
        """Files may have changed."""

    def files(self) -> Sequence[WatchedFile[Any]]:
        """Files that the gate has to watch for it."""

    async def close(self) -> None:
        """Stop its threads and tasks."""


class Authenticator:
    """The chain of methods."""

    def __init__(self, methods: Sequence[Method], counters: AccessCounters) -> None:
        self._methods = methods
        self._counters = counters
        self._log = get_logger("mqtt_proxy.auth")

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """The result of `authenticate` if it is available without waiting; None when it is not.

        A client with nothing to prove, or with credentials accepted a moment ago, costs no task.
        """
        for method in self._methods:
            answer = method.at_hand(shown)
            if answer is Waits.LATER:
                return None
            if answer is not None:
                return self._answered(answer, method, shown)
        return self._anonymous(shown)

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """The identity of a CONNECT, or the reason of a refusal."""
        for method in self._methods:
            answer = await method.check(shown)
            if answer is not None:
                return self._answered(answer, method, shown)
        return self._anonymous(shown)

    def _answered(self, answer: Identity | Unproven, method: Method, shown: Shown) -> Identity | Unproven:
        if isinstance(answer, Identity):
            self._counters.authentications.child("accepted", method.name).value += 1
            return answer
        if answer is Unproven.DENIED:
            self._counters.authentications.child(answer.value, method.name).value += 1
            self._log.warning(
                "mqtt_authentication_failed",
                user=shown.username,
                peer=shown.address,
                method=method.name,
                result=answer.value,
            )
        else:  # its proof was not looked at
            self._counters.undecided.child(answer.value, method.name).value += 1
            self._log.info("mqtt_authentication_undecided", peer=shown.address, method=method.name, reason=answer.value)
        return answer

    def refresh(self) -> None:
        """Files may have changed."""
        for method in self._methods:
            method.refresh()

    def files(self) -> list[WatchedFile[Any]]:
        """Files that have to be watched."""
        return [file for method in self._methods for file in method.files()]

    async def close(self) -> None:
        """Stop the threads and tasks of all methods."""
        for method in self._methods:
            await method.close()

    def _anonymous(self, shown: Shown) -> Identity | Unproven:
        if shown.username is not None and self._methods:
            result = "no_method"
        elif not shown.loopback:
            result = "not_loopback"
        else:
            self._counters.authentications.child("anonymous", "none").value += 1
            return Identity(shown.username or "", anonymous=True, client_id=shown.client_id)
        self._counters.authentications.child(result, "none").value += 1
        self._log.warning("mqtt_authentication_failed", user=shown.username, peer=shown.address, result=result)
        return Unproven.DENIED
