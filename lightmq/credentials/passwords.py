"""The password file: the users of MQTT, one ``name:argon2id hash`` per line.

Lines that start with ``#`` are kept, empty ones are dropped. Invariants: the file is readable by its owner alone (0600)
from its first byte on; a change replaces it atomically; a name occurs once. No loop: hashing takes some 50 ms on
purpose.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace

MODE = 0o600
NAME_BYTES_MAX = 256
PASSWORD_BYTES_MAX = 1_024


class PasswordFile:
    """The lines of one password file, changed in memory until :meth:`save`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self._lines = [line for line in text.splitlines() if line.strip()]

    def names(self) -> list[str]:
        """Every user, in order of the file."""
        return [line.partition(":")[0] for line in self._lines if _is_entry(line)]

    def put(self, name: str, password: str, *, scram: bool = False) -> bool:
        """Add a user or change its password; True when the name is new. Raises LocalMisuse or ScramError.

        With `scram` the line also serves MQTT 5's SCRAM-SHA-256.
        """
        _check_name(name)
        if not password:
            raise LocalMisuse(f"the password of {name!r} must not be empty")
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            raise LocalMisuse(f"the password of {name!r} is longer than {PASSWORD_BYTES_MAX} bytes")
        line = f"{name}:{_stored(password, scram=scram)}"
        new = name not in self.names()
        if new:
            self._lines.append(line)
        else:
            self._lines = [line if _names(old, name) else old for old in self._lines]
        return new

    def remove(self, name: str) -> None:
        """Take a user out. Raises LocalMisuse when there is none of that name."""
        if name not in self.names():
            raise LocalMisuse(f"{self.path} has no user {name!r}; it has: {', '.join(self.names()) or 'none'}")
        self._lines = [line for line in self._lines if not _names(line, name)]

    def save(self) -> None:
        """Replace the file. Raises OSError."""
        text = "".join(f"{line}\n" for line in self._lines)
        atomic_replace(self.path, text.encode(), mode=MODE)


def _stored(password: str, *, scram: bool) -> str:
    if scram:
        from mqtt_proxy.access.scram import SALT_BYTES, derive

        return str(derive(password, secrets.token_bytes(SALT_BYTES)))
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)


def _check_name(name: str) -> None:
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise LocalMisuse(f"a user name has 1 to {NAME_BYTES_MAX} bytes")
    if name.startswith("#") or any(character == ":" or not character.isprintable() for character in name):
        raise LocalMisuse(f"user name {name!r} must not hold a colon or control characters, nor start with #")


def _is_entry(line: str) -> bool:
    return not line.startswith("#")


def _names(line: str, name: str) -> bool:
    return _is_entry(line) and line.partition(":")[0] == name
