"""``lightmq passwd``: add, change or remove a user in a password file.

The password comes from a prompt, from ``--stdin``, or from the variable ``LIGHTMQ_PASSWORD``; never from an argument,
because other users of the machine can read those.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.outcome import CommandFailed
from lightmq.credentials.passwords import PasswordFile

PASSWORD_VARIABLE = "LIGHTMQ_PASSWORD"  # noqa: S105  # a name, not a password


def passwd(
    file: Annotated[Path, Parameter(help="The password file; made when it is not there.")],
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
        said = f"removed {user} from {file}"
    else:
        new = passwords.put(user, ask(stdin=stdin), scram=scram)
        said = f"{'added' if new else 'changed'} {user} in {file}; start with: lightmq up --password-file {file}"
    passwords.save()
    sys.stderr.write(said + "\n")


def ask(*, stdin: bool) -> str:
    """The new password, from where the caller said. Raises CommandFailed."""
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
