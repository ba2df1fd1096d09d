"""One enhanced authentication of MQTT 5 under way: SCRAM-SHA-256 with the credentials of the password file.

Invariant: every end is counted like that of any other method, a refusal is logged without secrets, and nothing but the
final proof makes an identity. Loop rule: on the loop's thread; a step costs microseconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from mqtt_proxy.access.methods.scram import MECHANISM, NONCE_BYTES, ScramError, ScramServer
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from runtime.logs import get_logger

METHOD = "scram"
"""As metric label."""


@dataclass(slots=True, frozen=True)
class Proven:
    """The end of an exchange that went well: whose it was, and the server's own proof."""

    identity: Identity
    proof: bytes


class Exchanges:
    """Begins exchanges."""

    def __init__(
        self,
        stored: Callable[[str], str | None] | None,
        counters: AccessCounters,
        like: Callable[[str], str | None] = lambda _username: None,
    ) -> None:
        """`stored` gives a user's credential (None: there is no password file), `like` one for who has none."""
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
