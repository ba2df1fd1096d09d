"""Where options come from that were not given: the environment, then the profile in use.

Precedence: option, environment variable, profile, default. cyclopts reads the variables that options name;
`from_profile` is its last source. A secret goes with the identity it belongs to: a profile's key is left alone when a
key is given otherwise, its password when another user is. Invariant: without a file of profiles nothing
of them is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, ArgumentCollection, Parameter, Token

SERVER_VARIABLE, KEY_VARIABLE, PROFILE_VARIABLE = "LIGHTMQ_SERVER", "LIGHTMQ_KEY", "LIGHTMQ_PROFILE"
FILE_VARIABLE = "LIGHTMQ_PROFILES"
"""Another place for the file of profiles."""


def profile_names(_context: object) -> list[str]:
    """Names of this user's profiles, for the shell."""
    from lightmq.profiles import ProfileFile

    return sorted(ProfileFile(place()).profiles)


PROFILES = Parameter(completer=profile_names)
"""For the annotations of arguments that name a profile."""
ProfileName = Annotated[
    str,
    PROFILES,
    Parameter(name=["--profile"], env_var=PROFILE_VARIABLE, help="Profile to use; see: lightmq profile --help"),
]
"""Option of every command that reaches a server."""
REMOTING = {
    "server": "--server", "tls": "--tls", "tls_ca": "--tls-ca", "tls_certificate": "--tls-certificate",
    "tls_key": "--tls-key", "tls_server_name": "--tls-server-name",
}  # fmt: skip
MQTT = {"mqtt_tls": "--tls", "mqtt_ca": "--cafile", "mqtt_certificate": "--cert", "mqtt_key": "--key"}
"""Key of a profile -> option."""
KEY_OPTIONS = {"key_file": "--access-key-file", "key": "--access-key"}
USER_OPTIONS = {"user": "--user", "password": "--password"}


def from_profile(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give the options that have no value yet that of the profile in use. Raises LocalMisuse."""
    if arguments.get("--profile", None) is None:
        return
    values = _profile_values(_given(arguments, "--profile"))
    if arguments.get("--mqtt-version", None) is None:
        _fill(arguments, REMOTING, values)
        _fill_together(arguments, KEY_OPTIONS, values)
        return
    _fill(arguments, MQTT, values)
    _fill_together(arguments, USER_OPTIONS, values)
    if not _given(arguments, "--host"):
        host, port = mqtt_address(values.get("mqtt", ""), os.environ.get(SERVER_VARIABLE) or values.get("server", ""))
        _fill(arguments, {"host": "--host", "port": "--port"}, {"host": host, "port": port})


def mqtt_address(mqtt: str, server: str) -> tuple[str, str]:
    """Host and port of MQTT: those of ``host:port``, else the host of the first name server; empty: unknown."""
    if mqtt:
        host, separator, port = mqtt.rpartition(":")
        return (host, port) if separator and port.isdecimal() else (mqtt, "")
    return server.split(",", maxsplit=1)[0].strip().rpartition(":")[0], ""


def place() -> Path:
    """Where the profiles of this user are."""
    if os.environ.get(FILE_VARIABLE):
        return Path(os.environ[FILE_VARIABLE])
    home = os.environ.get("XDG_CONFIG_HOME")
    return Path(home or os.environ.get("HOME") or ".", *([] if home else [".config"]), "lightmq", "profiles.toml")


def _profile_values(name: str) -> Mapping[str, Any]:
    """What the profile of this name says, or the one in use; nothing without one."""
    path = place()
    if not name and not path.exists():
        return {}
    from lightmq.profiles import ProfileFile

    found = ProfileFile(path)
    name = name or found.chosen
    return vars(found.named(name)) if name else {}


def _given(arguments: ArgumentCollection, option: str) -> str:
    """The text given for an option so far."""
    argument = arguments.get(option, None)
    return argument.tokens[0].value if argument is not None and argument.tokens else ""


def _fill(arguments: ArgumentCollection, options: Mapping[str, str], values: Mapping[str, Any]) -> None:
    for key, option in options.items():
        argument, value = arguments.get(option, None), values.get(key)
        if argument is not None and value and not argument.has_tokens:
            text = "true" if value is True else str(value)
            argument.append(Token(keyword=option, value=text, source="profile"))


def _fill_together(arguments: ArgumentCollection, options: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Fill these options unless one of them has a value already."""
    if not any(_given(arguments, option) for option in options.values()):
        _fill(arguments, options, values)
