"""Profiles: names for installations, so that commands need no addresses and keys.

    # ~/.config/lightmq/profiles.toml
    use = "plant"

    [profiles.plant]
    server = "controller-1:9876,controller-2:9876"
    mqtt = "mqtt.plant:8883"

The file may hold secrets: it is written with 0600 and refused if others may read it. Invariant: a key that is not
declared in `Profile` is an error that names the nearest one. A change replaces the file atomically. No loop.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from remoting.protocol.errors import LocalMisuse
from runtime.config import unknown
from runtime.files import atomic_replace

MODE = 0o600
FILE_BYTES_MAX = 1 << 20
SECTION, CHOICE = "profiles", "use"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How to reach one installation, and as whom; what is empty is left to the commands' defaults."""

    server: str = ""
    """Name servers (controllers), host:port, several with commas."""
    key_file: str = ""
    """File with one line key:secret."""
    key: str = field(default="", repr=False)
    """The line key:secret itself, instead of a file."""
    tls: bool = False
    """TLS to name servers and brokers."""
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    mqtt: str = ""
    """Where MQTT is spoken, host:port; without it the host of `server` and port 1883."""
    user: str = ""
    """MQTT user."""
    password: str = field(default="", repr=False)
    """Password of the MQTT user."""
    mqtt_tls: bool = False
    """TLS for MQTT."""
    mqtt_ca: str = ""
    mqtt_certificate: str = ""
    mqtt_key: str = ""


KEYS = {each.name: type(each.default) for each in fields(Profile)}
SECRETS = ("key", "password")


class ProfileFile:
    """The profiles of one user, changed in memory until :meth:`save`."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one. Raises LocalMisuse."""
        self.path = path
        self.profiles: dict[str, Profile] = {}
        self.chosen = ""
        """The profile in use where none is named; empty: none."""
        found = _read(path)
        for name in found:
            if name not in (SECTION, CHOICE):
                raise LocalMisuse(unknown(str(path), "key", name, (SECTION, CHOICE)))
        for name, keys in _table(found.get(SECTION, {}), path, SECTION).items():
            self.profiles[name] = _profile(path, name, keys)
        self.chosen = found.get(CHOICE, "")
        if not isinstance(self.chosen, str):
            raise LocalMisuse(f"{path}: {CHOICE} must be the name of a profile")

    def named(self, name: str) -> Profile:
        """One profile. Raises LocalMisuse with the nearest name, or those there are."""
        if name not in self.profiles:
            if not self.profiles:
                raise LocalMisuse(f"there is no profile {name}, nor any other; make one: lightmq profile add {name}")
            raise LocalMisuse(unknown(str(self.path), "profile", name, self.profiles))
        return self.profiles[name]

    def save(self) -> None:
        """Replace the file. Raises OSError."""
        lines = [f"{CHOICE} = {_text(self.chosen)}\n"] if self.chosen else []
        for name, profile in sorted(self.profiles.items()):
            lines.append(f"\n[{SECTION}.{_text(name)}]\n")
            lines += [f"{key} = {_text(value)}\n" for key, value in asdict(profile).items() if value]
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_replace(self.path, "".join(lines).encode(), mode=MODE)


def _read(path: Path) -> dict[str, Any]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise LocalMisuse(f"profiles {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise LocalMisuse(f"profiles {path}: not a regular file")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise LocalMisuse(f"profiles {path} may hold secrets and is open to other users; run: chmod 600 {path}")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise LocalMisuse(f"profiles {path}: longer than {FILE_BYTES_MAX} bytes")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LocalMisuse(f"profiles {path}: {error}") from error


def _profile(path: Path, name: str, keys: Any) -> Profile:
    where = f"{SECTION}.{name}"
    for key, value in _table(keys, path, where).items():
        if key not in KEYS:
            raise LocalMisuse(unknown(str(path), "key", f"{where}.{key}", [f"{where}.{each}" for each in KEYS]))
        if type(value) is not KEYS[key]:
            what = "true or false" if KEYS[key] is bool else "text in quotes"
            raise LocalMisuse(f"{path}: {where}.{key} must be {what}")
    return Profile(**keys)


def _table(found: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise LocalMisuse(f"{path}: {where} must be a section")
    return found


def _text(value: str | bool) -> str:
    """A value as TOML has it; JSON's strings are TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
