"""Closes the files that a test opened and left, as the end of a process does.

Many tests end a journal as a kill does: they drop it and open its file again. Its descriptor would stay until the
tests' process ends, and beyond the 1,024th every `select` in it fails. Not for objects that close their own descriptors
when they are collected: those would close another one's. Invariant: closed is only what was opened here, below
`folder`, and is still the same file. Thread rule: any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def closing_left_files(folder: Path) -> Iterator[None]:
    """Close on exit what was opened by `os.open` below `folder` in the block and is still open."""
    opened: dict[int, tuple[int, int]] = {}
    really_open = os.open

    def noting_open(*arguments: Any, **keywords: Any) -> int:
        descriptor = really_open(*arguments, **keywords)
        opened[descriptor] = identity(descriptor)
        return descriptor

    os.open = noting_open
    try:
        yield
    finally:
        os.open = really_open
        for descriptor, file in opened.items():
            with suppress(OSError):
                if identity(descriptor) == file and path_of(descriptor).startswith(f"{folder}/"):
                    os.close(descriptor)


def identity(descriptor: int) -> tuple[int, int]:
    """Device and inode of an open file; OSError when it is closed."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def path_of(descriptor: int) -> str:
    """The path of an open file, or its path before it was removed; OSError where the system does not give it."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())
