"""Users of the password file: name and password, one user per line.

    user:$argon2id$v=19$m=65536,t=3,p=4$...             made by `lightmq passwd`; lines that begin with # are comments
    user:SCRAM-SHA-256$16384:salt$storedkey:serverkey   made by `lightmq passwd --scram`; serves passwords as well

A user that the file does not name is left to the methods behind this one; when there is none, such a user costs the
same work as a wrong password, so that names cannot be distinguished by time. The file is checked for changes when a
client connects, at most once a second.

Invariants: a line that is not exactly of this form admits no user and is reported with its number (never with its text,
which may contain a password); a user named twice is denied until the file names it once. A file that others may read or
write is not used; a file that becomes unusable admits none of its users, and is tried again at each check. Loop rule:
one loop.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import argon2

from mqtt_proxy.access import scram
from mqtt_proxy.access.auth import Waits
from mqtt_proxy.access.credentials import CredentialCheck
from mqtt_proxy.config import AccessConfig
from mqtt_proxy.metrics import AccessCounters
from remoting.access.rules import Identity, Shown, Unproven
from remoting.protocol.errors import LightMQError
from runtime.clock import Clock
from runtime.files import WatchedFile, fingerprint
from runtime.logs import get_logger

FILE_SIZE_BYTES_MAX = 16 * 1_048_576
"""Largest file read, some 100,000 users; a larger one is refused as a mistake."""


class PasswordFileError(LightMQError):
    """The file cannot be used at all: missing, unreadable, too large, or open to other users of the machine."""


@dataclass(slots=True)
class PasswordTable:
    """The result of reading the file."""

    hashes: dict[str, str] = field(default_factory=dict)
    """User name -> argon2id hash or SCRAM credential."""
    problems: list[str] = field(default_factory=list)
    """Lines that admit no user, in words for the operator."""


def load(path: Path) -> PasswordTable:
    """Read the file. PasswordFileError when it may not be used; bad lines are in `problems`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not block the start
    except OSError as error:
        raise PasswordFileError(f"password file {path}: {error.strerror}") from error
    try:
        _check(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return parse(opened.read(FILE_SIZE_BYTES_MAX))
    finally:
        os.close(descriptor)


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PasswordFileError(f"password file {path} is not a regular file")
    if found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        mode = stat.filemode(found.st_mode)
        raise PasswordFileError(f"password file {path} is open to every user ({mode}); run: chmod 600 {path}")
    if found.st_size > FILE_SIZE_BYTES_MAX:
        raise PasswordFileError(f"password file {path} has {found.st_size} bytes, at most {FILE_SIZE_BYTES_MAX}")


def parse(data: bytes) -> PasswordTable:
    """Users and problems of the file's bytes."""
    result = PasswordTable()
    seen: dict[str, int] = {}
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()  # the end of the last line, not a blank one
    for number, raw in enumerate(lines, start=1):
        if raw.startswith(b"#"):
            continue
        problem, user, stored = _parse_line(raw)
        if problem:
            result.problems.append(f"line {number}: {problem}")
        elif user in seen:
            result.hashes.pop(user, None)
            result.problems.append(f"line {number}: the same user as line {seen[user]}; denied until only one is left")
        else:
            seen[user] = number
            result.hashes[user] = stored
    return result


def _parse_line(raw: bytes) -> tuple[str, str, str]:
    """(problem, user, hash); the problem is empty when the line is good."""
    try:
        line = raw.rstrip(b"\r").decode()
    except UnicodeDecodeError:
        return "not UTF-8", "", ""
    if not line.strip():
        return "blank", "", ""
    user, separator, behind = line.rpartition(f":{scram.PREFIX}")
    if separator and user:
        return _parse_scram(user, scram.PREFIX + behind)
    user, separator, stored = line.rpartition(":")
    if not separator or not user:
        return "not of the form user:hash", "", ""
    try:
        parameters = argon2.extract_parameters(stored)
    except argon2.exceptions.InvalidHashError:
        return "not an argon2id hash behind the colon", "", ""
    if parameters.type is not argon2.Type.ID:
        return "an argon2 hash of another kind than argon2id", "", ""
    return "", user, stored


def _parse_scram(user: str, stored: str) -> tuple[str, str, str]:
    try:
        scram.parse_stored(stored)
    except scram.ScramError as error:
        return str(error), "", ""
    return "", user, stored


RELOAD_INTERVAL_MS = 1_000
"""How often a change of the password file is checked for, at most, and only when a client connects."""


class PasswordMethod:
    """Passwords of the password file."""

    name = "password"

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        counters: AccessCounters,
        last: bool = True,
        config: AccessConfig | None = None,
    ) -> None:
        """Reads the file; PasswordFileError when it may not be used: do not start then. `last`: no other method decides
        about users that the file does not name; `config` bounds the checks, None is the default."""
        self._path = path
        self._clock = clock
        self._counters = counters
        self._last = last
        self._log = get_logger("mqtt_proxy.auth")
        bounds = config or AccessConfig()
        self._check = CredentialCheck(
            clock,
            waiting_max=bounds.password_checks_waiting_max,
            remembered_max=bounds.passwords_remembered_max,
            remembered_s=bounds.passwords_remembered_s,
        )
        self._looked_ms = 0
        self._last_error = ""
        self._fingerprint = fingerprint(path)
        self._key = secrets.token_bytes(16)
        self._stored: list[str] = []
        self._scram: list[str] = []
        self._use(load(path))
        self._report_problems()

    def at_hand(self, shown: Shown) -> Identity | Unproven | Waits | None:
        """The user whose password was accepted before."""
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
        """The user whose password is right."""
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
            size_bytes=shown.size_bytes,
            wanted=shown.wanted,
        )
        if result != "accepted":
            return Unproven(result)
        self._reload_if_changed()
        if self._users.hashes.get(shown.username) != stored:
            return Unproven.DENIED  # removed, or given another password, while the check waited
        return Identity(shown.username, anonymous=False, client_id=shown.client_id)

    def stored(self, username: str) -> str | None:
        """The user's entry in the file."""
        self._reload_if_changed()
        return self._users.hashes.get(username)

    def like_scram(self, username: str) -> str | None:
        """Some user's SCRAM credential, always the same for a name; None when there is none."""
        return self._one_of(self._scram, username)

    def refresh(self) -> None:
        """Check the file at the next CONNECT, however soon."""
        self._looked_ms = 0

    def files(self) -> Sequence[WatchedFile[Any]]:
        """None: it checks the file itself, when a client connects."""
        return ()

    async def close(self) -> None:
        """Stop the threads that check passwords."""
        self._check.close()

    def _like(self, username: str) -> str | None:
        """Some user's credential, always the same for a name: unknown users cost what known ones do, whose credentials
        may differ in kind and parameters."""
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
            self._use(load(self._path))
        except PasswordFileError as error:
            self._use(PasswordTable())
            self._fingerprint = None
            if str(error) != self._last_error:
                self._last_error = str(error)
                self._log.error("mqtt_password_file_unusable", problem=str(error), consequence="its users are denied")
            return
        self._last_error = ""
        self._log.info("mqtt_password_file_read", users=len(self._users.hashes))
        self._report_problems()

    def _report_problems(self) -> None:
        for problem in self._users.problems:
            self._counters.password_file_problems.value += 1
            self._log.warning("mqtt_password_file_line", path=str(self._path), problem=problem)
