"""Who may connect and who may do what: the one place that decides both.

    CONNECT without user name    from loopback: anonymous; from anywhere else: denied
    CONNECT with user name       with a password file: the password must fit; without one: as if there were no user name

Everything an identity does is asked of `authorize(identity, action, topic)`. Topics that begin with `$` are the
server's own: nobody publishes there. Beyond that every identity may do everything unless `rules` says no.

Invariants: fails closed (a password file that cannot be used denies every user); every denial is counted by reason and
logged without secrets. Loop rule: one loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mqtt_proxy.access import password_file
from mqtt_proxy.access.counters import AccessCounters
from mqtt_proxy.access.credentials import CredentialCheck, always
from mqtt_proxy.access.identity import ANONYMOUS, Action, Identity, Unproven
from mqtt_proxy.access.password_file import PasswordFile, PasswordFileError
from runtime.clock import Clock
from runtime.logs import get_logger

RELOAD_INTERVAL_MS = 1_000
"""How often a change of the password file is looked for, at most, and only when somebody connects."""


Rules = Callable[[Identity, str, bytes], bool]
"""Further restrictions: identity, action, topic or filter -> allowed."""


class Authenticator:
    """Decides about identities and their actions."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock,
        counters: AccessCounters,
        rules: Rules | None = None,
    ) -> None:
        """Reads the password file. PasswordFileError when there is one that may not be used: do not start then."""
        self._path = path
        self._clock = clock
        self._counters = counters
        self._rules = rules
        self._log = get_logger("mqtt_proxy.auth")
        self._check = CredentialCheck(clock)
        self._fingerprint: tuple[int, int, int, int] | None = None
        self._looked_ms = 0
        self._users = PasswordFile()
        if path is not None:
            self._fingerprint = password_file.fingerprint(path)
            self._users = password_file.load(path)
            self._report_problems()

    async def authenticate(
        self,
        username: str | None,
        password: bytes | None,
        *,
        loopback: bool,
        address: str = "",
        wanted: Callable[[], bool] = always,
    ) -> Identity | Unproven:
        """The identity of a CONNECT from `address`, or why there is none. `wanted`: is the client still there?"""
        if username is None or self._path is None:
            return self._anonymous(loopback, username)
        self._reload_if_changed()
        stored = self._users.hashes.get(username)
        result = await self._check.check(username, password or b"", stored, address=address, wanted=wanted)
        self._counters.authentications.child(result).value += 1
        if result == "accepted":
            return Identity(username, anonymous=False)
        self._log.warning("mqtt_authentication_failed", user=username, peer=address, result=result)
        return Unproven(result)

    def authorize(self, identity: Identity, action: str, topic: bytes | str) -> bool:
        """Whether the identity may do this with this topic name or filter; a refusal is counted."""
        if isinstance(topic, str):
            topic = topic.encode()
        if topic.startswith(b"$"):
            reason = _reserved(action, topic)
            if reason is not None:
                self._counters.denials.child(action, reason).value += 1
                return False
        if self._rules is None or self._rules(identity, action, topic):
            return True
        self._counters.denials.child(action, "rules").value += 1
        return False

    def close(self) -> None:
        """Stop the threads that check passwords."""
        self._check.close()

    def _anonymous(self, loopback: bool, username: str | None) -> Identity | Unproven:
        if not loopback:
            self._counters.authentications.child("not_loopback").value += 1
            self._log.warning("mqtt_anonymous_refused", user=username)
            return Unproven.DENIED
        self._counters.authentications.child("anonymous").value += 1
        return ANONYMOUS if username is None else Identity(username, anonymous=True)

    def _reload_if_changed(self) -> None:
        assert self._path is not None
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if self._looked_ms and now_ms - self._looked_ms < RELOAD_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        found = password_file.fingerprint(self._path)
        if found == self._fingerprint:
            return
        self._fingerprint = found
        try:
            self._users = password_file.load(self._path)
        except PasswordFileError as error:
            self._users = PasswordFile()
            self._log.error("mqtt_password_file_unusable", problem=str(error), consequence="every user is denied")
            return
        self._log.info("mqtt_password_file_read", users=len(self._users.hashes))
        self._report_problems()

    def _report_problems(self) -> None:
        for problem in self._users.problems:
            self._counters.password_file_problems.value += 1
            self._log.warning("mqtt_password_file_line", path=str(self._path), problem=problem)


def _reserved(action: str, topic: bytes) -> str | None:
    """Why a topic that begins with `$` is not for this action."""
    if action in (Action.PUBLISH, Action.WILL):
        return "dollar_topic"
    if action == Action.SUBSCRIBE and topic.startswith(b"$share/"):
        return "shared_subscription"  # MQTT 5 only; granting it as a plain filter would deliver nothing, silently
    return None
