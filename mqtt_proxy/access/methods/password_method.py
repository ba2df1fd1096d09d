"""Users of the password file: name and password.

A user the file does not name is left to the methods behind this one; when there is none, such a user costs the same
work as a wrong password, so that names cannot be told apart by time. The file is looked at when somebody connects, at
most once a second.

Invariant: fails closed: a file that cannot be used any more lets none of its users in, and is tried again at each look.
Loop rule: one loop.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mqtt_proxy.access.auth import Waits
from mqtt_proxy.access.counters import AccessCounters
from mqtt_proxy.access.methods import password_file, scram
from mqtt_proxy.access.methods.credentials import CredentialCheck
from mqtt_proxy.access.methods.password_file import PasswordFileError, PasswordTable
from remoting.access.identity import Identity, Shown, Unproven
from runtime.clock import Clock
from runtime.files import WatchedFile, fingerprint
from runtime.logs import get_logger

RELOAD_INTERVAL_MS = 1_000
"""How often a change of the password file is looked for, at most, and only when somebody connects."""


class PasswordMethod:
    """Passwords of the password file."""

    name = "password"

    def __init__(self, path: Path, *, clock: Clock, counters: AccessCounters, last: bool = True) -> None:
        """Reads the file; PasswordFileError when it may not be used: do not start then. `last`: nobody else is asked
        about users the file does not name."""
        self._path = path
        self._clock = clock
        self._counters = counters
        self._last = last
        self._log = get_logger("mqtt_proxy.auth")
        self._check = CredentialCheck(clock)
        self._looked_ms = 0
        self._told = ""
        self._fingerprint = fingerprint(path)
        self._key = secrets.token_bytes(16)
        self._stored: list[str] = []
        self._scram: list[str] = []
        self._use(password_file.load(path))
        self._report_problems()

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """The user whose password was right a moment ago."""
        if shown.username is None:
            return None
        self._reload_if_changed()
        stored = self._users.hashes.get(shown.username)
        if stored is None:
            return Waits.LATER if self._last else None
        if not self._check.remembers(shown.username, shown.password or b"", stored):
            return Waits.LATER
        return Identity(shown.username, anonymous=False, client_id=shown.client_id)

    async def check(self, shown: Shown) -> Identity | Unproven | None:
        """The user whose password was right."""
        known = self.at_hand(shown)
        if not isinstance(known, Waits):
            return known
        assert shown.username is not None
        stored = self._users.hashes.get(shown.username)
        result = await self._check.check(
            shown.username,
            shown.password or b"",
            stored,
            like=self._like(shown.username),
            address=shown.address,
            wanted=shown.wanted,
        )
        if result == "accepted":
            return Identity(shown.username, anonymous=False, client_id=shown.client_id)
        return Unproven(result)

    def stored(self, username: str) -> str | None:
        """What the file holds for the user."""
        self._reload_if_changed()
        return self._users.hashes.get(username)

    def like_scram(self, username: str) -> str | None:
        """A credential of SCRAM of somebody, always the same for a name; None when there is none."""
        return self._one_of(self._scram, username)

    def refresh(self) -> None:
        """Look at the file at the next CONNECT, however soon."""
        self._looked_ms = 0

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None: it looks itself, when somebody connects."""
        return ()

    async def close(self) -> None:
        """Stop the threads that check passwords."""
        self._check.close()

    def _like(self, username: str) -> str | None:
        """A credential of somebody, always the same for a name: users who do not exist cost what users do, whose
        credentials may differ in kind and parameters."""
        return self._one_of(self._stored, username)

    def _one_of(self, stored: Sequence[str], username: str) -> str | None:
        if not stored:
            return None
        digest = hashlib.blake2b(username.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
        return stored[int.from_bytes(digest, "big") % len(stored)]

    def _use(self, users: PasswordTable) -> None:
        self._users, self._stored = users, list(users.hashes.values())
        self._scram = [one for one in self._stored if one.startswith(scram.PREFIX)]

    def _reload_if_changed(self) -> None:
        now_ms = self._clock.monotonic_ns() // 1_000_000
        if self._looked_ms and now_ms - self._looked_ms < RELOAD_INTERVAL_MS:
            return
        self._looked_ms = now_ms
        found = fingerprint(self._path)
        if found is not None and found == self._fingerprint:
            return
        self._fingerprint = found
        try:
            self._use(password_file.load(self._path))
        except PasswordFileError as error:
            self._use(PasswordTable())
            self._fingerprint = None
            if str(error) != self._told:
                self._told = str(error)
                self._log.error("mqtt_password_file_unusable", problem=str(error), consequence="its users are denied")
            return
        self._told = ""
        self._log.info("mqtt_password_file_read", users=len(self._users.hashes))
        self._report_problems()

    def _report_problems(self) -> None:
        for problem in self._users.problems:
            self._counters.password_file_problems.value += 1
            self._log.warning("mqtt_password_file_line", path=str(self._path), problem=problem)
