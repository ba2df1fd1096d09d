"""A file whose content is in force: read again when it changes, and kept as it was while the new one is no use.

    look -> fingerprint as before: nothing
         -> changed since the last look: wait one more, an editor may still be writing
         -> changed and still the same: read it in a thread, and put it in force if it did not change meanwhile

Invariants: what is in force came from one whole file; a file that cannot be read (gone, garbled, no descriptor left)
changes nothing, is reported, and is tried again. At most one reading at a time. Loop rule: on one loop; `load` runs
in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from remoting.protocol.errors import LightMQError

T = TypeVar("T")


def fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    """Changes when the file or who may read it changes; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


class WatchedFile(Generic[T]):
    """One file and what it is read into."""

    def __init__(
        self,
        path: Path,
        load: Callable[[Path], T],
        *,
        applied: Callable[[T], None],
        failed: Callable[[LightMQError], None],
    ) -> None:
        """`load` raises LightMQError when the file gives nothing to put in force."""
        self.path = path
        self._load = load
        self._applied = applied
        self._failed = failed
        self._in_force: tuple[int, ...] | None = None
        self._seen: tuple[int, ...] | None = None
        self._told = ""
        self._busy = asyncio.Lock()

    def first(self) -> T:
        """Read it at the start; blocks. Raises what `load` raises."""
        self._in_force = self._seen = fingerprint(self.path)
        return self._load(self.path)

    async def look(self, *, now: bool = False) -> None:
        """Put a changed file in force; with `now` also one that has not changed, and without waiting for its writer."""
        async with self._busy:
            found = fingerprint(self.path)
            settled, self._seen = found == self._seen, found
            if now or (settled and found != self._in_force):
                await self._read(found, told_again=now)

    async def _read(self, found: tuple[int, ...] | None, *, told_again: bool) -> None:
        try:
            content = await asyncio.to_thread(self._load, self.path)
        except LightMQError as error:
            # Tried again at each look, since the cause may pass without a change; told once.
            if told_again or str(error) != self._told:
                self._told = str(error)
                self._failed(error)
            return
        if fingerprint(self.path) != found:
            return  # it changed while it was read; the next look sees to it
        self._in_force, self._told = found, ""
        self._applied(content)
