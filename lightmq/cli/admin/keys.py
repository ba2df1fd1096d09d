"""``lightmq keys``: access keys for the parts of an installation, named by hand or by the access list that uses them.

Run again with the same folder it makes only the keys that are missing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def keys(
    folder: Annotated[Path, Parameter(help="Where the key files are; made if it is not there.")],
    *,
    name: Annotated[
        list[str] | None, Parameter(name=["--name"], negative=(), help="Name of a key; repeatable.")
    ] = None,
    access_list: Annotated[
        Path | None, Parameter(name=["--access-list"], help="Access list; a key for each of its users is made.")
    ] = None,
) -> None:
    """Make a file with an access key for each name, if the folder has none, and lists of all of them.

    FOLDER/NAME is for the part that signs, FOLDER/all for those who check (access_keys); FOLDER/env has both as
    variables.
    """
    from lightmq.credentials.access_keys import make
    from remoting.access.acl_file import load

    listed = () if access_list is None else load(access_list).users
    new = make(folder, [*(name or ()), *listed])
    sys.stderr.write(f"{len(new)} new keys in {folder}{': ' if new else ''}{', '.join(new)}\n")
