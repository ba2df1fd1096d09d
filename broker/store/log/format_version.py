"""The FORMAT file says which version of the layout a data directory has.

Invariant: a directory without FORMAT that holds log files is not ours to touch; another version is refused by name.
Thread rule: called once, before anything else is opened.
"""

from __future__ import annotations

from pathlib import Path

from broker.store.errors import WrongFormat
from runtime.files import atomic_replace

NAME = "FORMAT"
VERSION = 2


def check_format(directory: Path) -> None:
    """Write FORMAT into an empty directory, or compare it. Raises WrongFormat."""
    path = directory / NAME
    if not path.exists():
        if (directory / "log").exists():
            raise WrongFormat(f"{directory} holds a log but no {NAME} file; it is not a data directory of this broker")
        atomic_replace(path, f"lightmq-store {VERSION}\n".encode(), mode=0o600)
        return
    text = path.read_text(errors="replace").strip()
    if text != f"lightmq-store {VERSION}":
        raise WrongFormat(
            f"{path} says {text[:60]!r}, this broker reads and writes 'lightmq-store {VERSION}'; "
            "use the version that wrote the directory, or another directory"
        )
