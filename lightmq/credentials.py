"""Files that decide who gets in: passwords of MQTT users, and access keys of an installation's parts.

The password file has one ``name:argon2id hash`` per line. Lines that start with ``#`` are kept, empty ones are dropped.
Invariants: the file is readable by its owner alone (0600) from its first byte on; a change replaces it atomically; a
name occurs once. No loop: hashing takes some 50 ms on purpose.

A folder of access keys for the parts of an installation: one file for each, and what those who check them need.

    FOLDER/broker-a     broker-a:SECRET                            what the part signs with (`access_key_file`)
    FOLDER/all          broker-a:SECRET,proxies:SECRET             what brokers and controllers check (`access_keys`)
    FOLDER/env          LIGHTMQ_ACCESS_KEYS=..., LIGHTMQ_KEY_BROKER_A=...      both, as variables for compose

Invariant: a key that is there stays as it is, so that making one more changes nothing for the others; all files are
readable by their owner alone (0600).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from remoting.client.connection import read_signer
from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace, make_directory

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


ALL, ENVIRONMENT = "all", "env"
SECRET_BYTES = 24
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def make(folder: Path, names: Iterable[str]) -> list[str]:
    """Keys of these names, as far as the folder has none; the new ones. Raises LocalMisuse, OSError."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        raise LocalMisuse("name the keys, or the access list that names them")
    for name in wanted:
        if not NAME.fullmatch(name) or name in (ALL, ENVIRONMENT):
            raise LocalMisuse(f"{name!r} is no name for a key: up to 64 letters, digits, and . _ - behind the first")
    make_directory(folder, mode=0o700)
    new = [name for name in wanted if not (folder / name).exists()]
    for name in new:
        _write(folder / name, f"{name}:{secrets.token_hex(SECRET_BYTES)}\n")
    lines = {path.name: _line(path) for path in sorted(folder.iterdir()) if path.name not in (ALL, ENVIRONMENT)}
    together = ",".join(lines.values())
    _write(folder / ALL, together)
    variables = {"LIGHTMQ_ACCESS_KEYS": together, **{variable(name): line for name, line in lines.items()}}
    if len(variables) <= len(lines):
        raise LocalMisuse(f"two keys in {folder} would have one variable: {', '.join(lines)}")
    _write(folder / ENVIRONMENT, "".join(f"{name}={value}\n" for name, value in variables.items()))
    return new


def variable(name: str) -> str:
    """The variable of a key."""
    return "LIGHTMQ_KEY_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def _line(path: Path) -> str:
    """The content of a key file. Raises LocalMisuse for an invalid one, and for a secret that would end in a list."""
    signer = read_signer(path)
    line = path.read_text().strip()
    if signer.access_key != path.name or not re.fullmatch(r"[A-Za-z0-9._:-]+", line):
        raise LocalMisuse(f"{path} is no key made here: it would not fit into a list of keys")
    return line


def _write(path: Path, text: str) -> None:
    atomic_replace(path, text.encode(), mode=MODE)
