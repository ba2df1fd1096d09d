"""``lightmq profile``: name installations, choose one, list them, forget one.

Invariant: a secret is read from a terminal or standard input, never taken as an option, and never shown.
"""

from __future__ import annotations

import getpass
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.defaults import PROFILES, place
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import print_rows, printable
from lightmq.profiles import SECRETS, Profile, ProfileFile
from remoting.client.connection import read_signer, signer_of
from remoting.protocol.errors import LocalMisuse

profile = App(
    name="profile",
    help="Name installations, so that commands need no addresses and keys.",
    help_format="plaintext",
    help_epilogue=epilogue("profile"),
)
HEADINGS = ("", "PROFILE", "SERVER", "MQTT", "KEY", "USER", "TLS")
NO_LINE = "standard input has no line for it"
Name = Annotated[str, Parameter(help="Name of the profile.")]
OneName = Annotated[str, PROFILES, Parameter(help="Name of the profile.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per profile, without secrets.")]


@profile.command
def add(
    name: Name,
    *,
    server: Annotated[
        str, Parameter(name=["--server", "-s"], help="Name servers (controllers), host:port; several with commas.")
    ] = "",
    mqtt: Annotated[str, Parameter(help="MQTT as host:port; default: the host of --server, port 1883.")] = "",
    access_key_file: Annotated[Path | None, Parameter(help="File with one line key:secret.")] = None,
    key: Annotated[bool, Parameter(negative="", help="Ask for the line key:secret and keep it here instead.")] = False,
    user: Annotated[str, Parameter(name=["--user", "-u"], help="MQTT user.")] = "",
    password: Annotated[bool, Parameter(negative="", help="Ask for the password of the MQTT user.")] = False,
    tls: Annotated[bool, Parameter(negative="", help="TLS to name server and brokers.")] = False,
    tls_ca: Annotated[Path | None, Parameter(help="Trusted certificate authorities, PEM; means --tls.")] = None,
    mqtt_tls: Annotated[bool, Parameter(negative="", help="TLS for MQTT.")] = False,
    mqtt_ca: Annotated[Path | None, Parameter(help="Trusted authorities for MQTT, PEM; means --mqtt-tls.")] = None,
    use: Annotated[bool, Parameter(negative="", help="Use it from now on where no profile is named.")] = False,
) -> None:
    """Add a profile, or replace it; the first one is in use at once."""
    if not name or not name.isprintable():
        raise LocalMisuse("a profile needs a name of printable characters")
    if not server and not mqtt:
        raise LocalMisuse(f"say where it is: lightmq profile add {name} --server HOST:9876")
    if key and access_key_file is not None:
        raise LocalMisuse("--key and --access-key-file exclude each other")
    if password and not user:
        raise LocalMisuse("--password needs --user")
    if access_key_file is not None:
        read_signer(access_key_file)
    found = ProfileFile(place())
    made = Profile(
        server=server, mqtt=mqtt, key_file=_absolute(access_key_file), key=_asked_key() if key else "", user=user,
        password=_asked(f"Password of {user}: ") if password else "", tls=tls or tls_ca is not None,
        tls_ca=_absolute(tls_ca), mqtt_tls=mqtt_tls or mqtt_ca is not None, mqtt_ca=_absolute(mqtt_ca),
    )  # fmt: skip
    found.profiles[name] = made
    if use or not found.chosen:
        found.chosen = name
    found.save()
    used = "; it is in use" if found.chosen == name else f"; use it with: lightmq profile use {name}"
    sys.stdout.write(f"added {name} to {found.path}{used}\n")


@profile.command
def use(name: OneName) -> None:
    """Use a profile from now on where neither --profile nor $LIGHTMQ_PROFILE names one."""
    found = ProfileFile(place())
    found.named(name)
    found.chosen = name
    found.save()
    sys.stdout.write(f"commands use {name} now\n")


@profile.command(name="list")
def listing(*, json_output: Json = False) -> None:
    """List the profiles; the one in use has a star."""
    found = ProfileFile(place())
    rows = [
        {"profile": name, "in_use": name == found.chosen, **_shown(one)} for name, one in sorted(found.profiles.items())
    ]
    print_rows(rows, HEADINGS, _cells, json_output=json_output, empty="there are no profiles: lightmq profile add NAME")


@profile.command
def remove(name: OneName) -> None:
    """Remove a profile, with the secrets it has."""
    found = ProfileFile(place())
    found.named(name)
    del found.profiles[name]
    if found.chosen == name:
        found.chosen = ""
    found.save()
    sys.stdout.write(f"removed {name}\n")


def _asked_key() -> str:
    line = _asked("Line key:secret: ")
    signer_of(line, "what was entered")
    return line


def _asked(question: str) -> str:
    """A secret from the terminal, or a line of standard input. Raises LocalMisuse for an empty one."""
    text = getpass.getpass(question) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not text:
        raise LocalMisuse(f"{question.rstrip(': ')}: {NO_LINE}")
    return text


def _absolute(path: Path | None) -> str:
    return "" if path is None else str(path.absolute())


def _shown(one: Profile) -> dict[str, Any]:
    """Everything but secrets: of those, whether there is one."""
    return {name: bool(value) if name in SECRETS else value for name, value in asdict(one).items()}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    tls = [name for name, on in (("remoting", row["tls"]), ("mqtt", row["mqtt_tls"])) if on]
    key = row["key_file"] or ("kept here" if row["key"] else "-")
    names = (row["profile"], row["server"] or "-", row["mqtt"] or "-", key, row["user"] or "-", ", ".join(tls) or "-")
    return "*" if row["in_use"] else " ", *map(printable, names)
