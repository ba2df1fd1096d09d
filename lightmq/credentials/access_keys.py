"""A folder of access keys for the parts of an installation: one file for each, and what those who check them need.

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

ALL, ENVIRONMENT = "all", "env"
SECRET_BYTES = 24
MODE = 0o600
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
