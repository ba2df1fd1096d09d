"""``lightmq console``: tokens to sign in to the web console with.

Works on the data directory, whether or not a server runs on it: a running one takes the new token at once. Invariant: a
token is printed once, by the command that makes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from console.tokens import TokenFile
from console.viewers import ADMIN, MONITOR
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import CommandFailed
from lightmq.configuration import UpConfig

DATA = UpConfig().data_directory
console = App(
    name="console",
    help="Make tokens for signing in to the web console.",
    help_format="plaintext",
    help_epilogue=epilogue("console"),
)


@console.command
def token(
    *,
    renew: Annotated[
        bool, Parameter(negative=(), help="Make a new token; the one before, and who signed in with it, is signed out.")
    ] = False,
    read_only: Annotated[
        bool,
        Parameter(negative=(), help="The token of the role monitor, which looks at everything and acts on nothing."),
    ] = False,
    data: Annotated[
        Path, Parameter(name=["--data"], help="Data directory of `lightmq up`, a controller or a broker.")
    ] = DATA,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print JSON.")] = False,
) -> None:
    """Make a new token with --renew; without it, say whether there is one: a token cannot be shown again."""
    if not data.is_dir():
        raise CommandFailed(f"there is no data directory {data}; name it with --data")
    role, tokens = MONITOR if read_only else ADMIN, TokenFile(data)
    if renew:
        made = tokens.renew(role)
        sys.stdout.write(json.dumps({"console_token": made, "role": role}) + "\n" if json_output else f"{made}\n")
        return
    if json_output:
        sys.stdout.write(json.dumps({"exists": tokens.has(role), "role": role}) + "\n")
        return
    state = "there is a token" if tokens.has(role) else "there is no token"
    sys.stdout.write(f"{state} for the role {role} in {data}; lightmq console token --renew makes a new one\n")
