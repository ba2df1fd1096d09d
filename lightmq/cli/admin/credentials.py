"""Commands that make credentials: ``lightmq keys``, ``lightmq passwd`` and ``lightmq certs``.

``lightmq keys``: access keys for the parts of an installation, named by hand or by the access list that uses them.
Run again with the same folder it makes only the keys that are missing.

``lightmq passwd``: add, change or remove a user in a password file.
The password comes from a prompt, from ``--stdin``, or from the variable ``LIGHTMQ_PASSWORD``; never from an argument,
because other users of the machine can read those.

``lightmq certs``: a private authority and a certificate for TLS among the parts of an installation.
Run again with the same folder it keeps the authority and makes a new certificate: that is how one is renewed.
"""

from __future__ import annotations

import getpass
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.outcome import CommandFailed, CommandMisused
from lightmq.credentials import PasswordFile
from runtime.clock import SystemClock


def keys(
    folder: Annotated[Path, Parameter(help="Folder of the key files; created if missing.")],
    *,
    name: Annotated[
        list[str] | None, Parameter(name=["--name"], negative=(), help="Name of a key; repeatable.")
    ] = None,
    access_list: Annotated[
        Path | None, Parameter(name=["--access-list"], help="Access list; a key is created for each of its users.")
    ] = None,
) -> None:
    """Create a file with an access key for each name, if the folder has none, and lists of all of them.

    FOLDER/NAME is for the part that signs, FOLDER/all for those who check (access_keys); FOLDER/env has both as
    variables.
    """
    from lightmq.credentials import make
    from remoting.access.acl_file import load

    listed = () if access_list is None else load(access_list).users
    new = make(folder, [*(name or ()), *listed])
    sys.stderr.write(f"{len(new)} new keys in {folder}{': ' if new else ''}{', '.join(new)}\n")


PASSWORD_VARIABLE = "LIGHTMQ_PASSWORD"  # noqa: S105  # a name, not a password


def passwd(
    file: Annotated[Path, Parameter(help="The password file; created if missing.")],
    user: Annotated[str, Parameter(help="User name.")],
    *,
    stdin: Annotated[bool, Parameter(negative=(), help="Read the password from the first line of input.")] = False,
    scram: Annotated[bool, Parameter(negative=(), help="Store it for MQTT 5's SCRAM-SHA-256 as well.")] = False,
    delete: Annotated[bool, Parameter(negative=(), help="Remove the user.")] = False,
) -> None:
    """Add, change or remove a user in a password file."""
    passwords = PasswordFile(file)
    if delete:
        passwords.remove(user)
        done = f"removed {user} from {file}"
    else:
        new = passwords.put(user, ask(stdin=stdin), scram=scram)
        done = f"{'added' if new else 'changed'} {user} in {file}; start with: lightmq up --password-file {file}"
    passwords.save()
    sys.stderr.write(done + "\n")


def ask(*, stdin: bool) -> str:
    """The new password, from its source on the command line. Raises CommandFailed."""
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    if not sys.stdin.isatty():
        raise CommandFailed(f"no terminal to ask for a password; use --stdin or set {PASSWORD_VARIABLE}")
    first = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != first:
        raise CommandFailed("the two passwords differ")
    return first


DAYS_DEFAULT = 825
DAYS_MAX = 3_650


def certs(
    folder: Annotated[Path, Parameter(help="Folder of ca.crt, ca.key, tls.crt and tls.key; created if missing.")],
    *,
    name: Annotated[
        list[str],
        Parameter(
            name=["--name"],
            negative=(),
            help="Host name or address the certificate is for; repeatable. {0..2} expands to three names.",
        ),
    ],
    days: Annotated[int, Parameter(help="How long the certificate is valid.")] = DAYS_DEFAULT,
) -> None:
    """Create a private authority, if the folder has none, and a certificate for these names.

    Keep ca.key away from the servers: anyone who has it can pass for any of them.
    """
    from lightmq.certificates import make

    if not 1 <= days <= DAYS_MAX:
        raise CommandMisused(f"--days must be 1 to {DAYS_MAX}, not {days}")
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    made = make(folder, name, days=days, now=now)
    authority = "a new authority" if made.new_authority else "the authority that was there"
    sys.stderr.write(
        f"certificate for {', '.join(made.names)} by {authority} in {folder}, valid until {made.expires:%Y-%m-%d}\n"
    )
