"""A data directory that cannot be used, found before anything is started and told in words that help.

Invariant: a directory that :func:`prepare` accepts exists and a file was written into it and removed again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from remoting.protocol.errors import LocalMisuse
from runtime.files import make_directory

MODE = 0o700


class DirectoryUnusable(LocalMisuse):
    """A data directory cannot be made or written; names it, the reason and the option that chooses another."""


def prepare(directory: Path, option: str) -> None:
    """Make ``directory`` if it is not there and see that it can be written. Raises DirectoryUnusable."""
    try:
        make_directory(directory, mode=MODE)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise DirectoryUnusable(
            f"data directory {directory} cannot be used ({error.strerror or error}); "
            f"fix that or choose another with {option}"
        ) from error
