"""The tokens of the first sign-in: random texts, of which the data directory holds only hashes.

    DATA/console-tokens   {"admin": "sha256:...", "monitor": "sha256:..."}     readable by its owner alone (0600)
    DATA/console-token    the administrator's token of the first start, where that start could not show it to a person
                          (0600); it ends with the token

A token has 256 random bits, so a plain hash reveals nothing, and costs nothing to check. A new one replaces the old one
of its role at once: sessions that began with the old one end, also those of a running server. Invariant: a token is
shown by the call that makes it, and by no other but that file. Thread rule: reads a small file; any thread.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path

from console.viewers import ADMIN, MONITOR
from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace

NAME = "console-tokens"
UNSHOWN_NAME = "console-token"
MODE = 0o600
PREFIX = "lmq_"
RANDOM_BYTES = 32
TOKEN_ROLES = (ADMIN, MONITOR)


def hash_of(token: str) -> str:
    """Return what the file holds of a token."""
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenFile:
    """The hashes of one data directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._unshown = directory / UNSHOWN_NAME
        self._seen: tuple[int, int, int] | None = None
        self._hashes: dict[str, str] = {}

    @property
    def exists(self) -> bool:
        """Whether there is a token of any role."""
        return bool(self._read())

    def has(self, role: str) -> bool:
        """Whether there is a token of this role."""
        return role in self._read()

    def role(self, token: str) -> str | None:
        """Return the role of a token, None for one that is not valid."""
        given = hash_of(token)
        found = None
        for role, known in self._read().items():
            if hmac.compare_digest(known, given):
                found = role
        return found

    def holds(self, role: str, known_hash: str) -> bool:
        """Whether the token with this hash is still that of the role."""
        return hmac.compare_digest(self._read().get(role, ""), known_hash)

    def renew(self, role: str) -> str:
        """Make a token of a role, which replaces the one before, and return it. OSError, LocalMisuse."""
        assert role in TOKEN_ROLES
        token = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        hashes = {**self._read(), role: hash_of(token)}
        atomic_replace(self._path, json.dumps(hashes).encode() + b"\n", mode=MODE)
        if role == ADMIN:
            self._unshown.unlink(missing_ok=True)
        return token

    def keep_unshown(self, token: str) -> Path:
        """Write the administrator's token, which nobody has seen, to a file for its owner; return its path. OSError."""
        atomic_replace(self._unshown, f"{token}\n".encode(), mode=MODE)
        return self._unshown

    def _read(self) -> dict[str, str]:
        """Return the hashes by role; read again when the file has changed. LocalMisuse when it is unusable."""
        try:
            state = self._path.stat()
        except FileNotFoundError:
            self._hashes, self._seen = {}, None
            return self._hashes
        seen = (state.st_mtime_ns, state.st_ino, state.st_size)
        if seen != self._seen:
            self._hashes = _parse(self._path)
            self._seen = seen
        return self._hashes


def _parse(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
        hashes = {role: str(found[role]) for role in TOKEN_ROLES if role in found}
    except (ValueError, TypeError) as error:
        raise LocalMisuse(f"{path} is not a file of console tokens; remove it: {error}") from error
    return hashes
