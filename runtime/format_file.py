"""FORMAT in a data directory: its layout, and which releases may open it.

    lightmq-store 2 records 1

The first number is that of the layout: a program that has another one refuses the directory. The second is raised by
each release that writes a new kind of record, or gives an old one a new meaning: a program that knows fewer would pass
over what it does not know, and a record that it passes over may be the one that takes a message back. So it refuses,
in words, and changes nothing. A program that knows more raises the number when it opens the directory. Directories of
before the second number have none, which is 0; programs of before compare the whole line, so they refuse it too.

Invariant: the numbers of a directory never fall, and they are durable before the program writes anything else into it.
Thread rule: blocks; one caller at a time, the one that has locked the directory.
"""

from __future__ import annotations

import re
from pathlib import Path

from remoting.protocol.errors import LocalMisuse
from runtime.files import atomic_replace

FORMAT_NAME = "FORMAT"
_LINE = re.compile(r"(?P<kind>[a-z-]+) (?P<layout>\d+)(?: records (?P<records>\d+))?")


class WrongFormat(LocalMisuse):
    """The data directory belongs to another program, or to a release that this one cannot stand in for."""


def check_format(directory: Path, kind: str, layout: int, records: int, *, is_used: bool) -> None:
    """Write FORMAT into a fresh directory, or compare it, and raise its second number to `records`.

    `is_used`: the directory has files of this kind. Raises WrongFormat, with nothing changed.
    """
    path, own = directory / FORMAT_NAME, f"{kind} {layout} records {records}"
    if not path.exists():
        if is_used:
            raise WrongFormat(
                f"{directory} holds a log but no {FORMAT_NAME} file; it is not a data directory of this program"
            )
        atomic_replace(path, f"{own}\n".encode(), mode=0o600)
        return
    text = path.read_text(errors="replace").strip()
    found = _LINE.fullmatch(text)
    if found is None or (found["kind"], int(found["layout"])) != (kind, layout):
        raise WrongFormat(
            f"{path} says {text[:60]!r}, this program reads and writes {own!r}; "
            "use the version that wrote the directory, or another directory"
        )
    known = int(found["records"] or 0)
    if known > records:
        raise WrongFormat(
            f"{path} says {text!r}: a newer release has opened this directory, and this one, which knows records up to "
            f"{records}, would overlook some of them; start that release or a newer one, or put back a copy of before"
        )
    if known < records:
        atomic_replace(path, f"{own}\n".encode(), mode=0o600)
