"""Files that survive a power cut, and the lock that keeps two processes out of one directory.

Invariant of :func:`atomic_replace`: at every instant the path holds either the whole old content or the whole new one,
and when the call returns the new one is on the disk. A file is only as durable as the names above it: data directories
are made by :func:`make_directory`. Thread rule: all calls block; none belongs on a busy event loop.

A watched file whose content is in force: reloaded when it changes; an unusable new content leaves the old in force.

    check -> same fingerprint: nothing
    -> changed since the last check: wait for another one, an editor may still be writing
    -> changed and stable since: read it in a thread, and put it in force if it did not change meanwhile

Invariants: the content in force came from one whole file; a file that cannot be read (missing, malformed, no descriptor
left) changes nothing, is reported, and is retried. At most one read at a time. Loop rule: on one loop; `load` runs in a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Self, TypeVar

from remoting.protocol.errors import LightMQError, LocalMisuse

LOCK_NAME = "lock"


class DirectoryLocked(LocalMisuse):
    """Another process works in the directory; ``owner_pid`` is its id (0: unknown)."""

    def __init__(self, directory: Path, owner_pid: int) -> None:
        owner = f"process {owner_pid}" if owner_pid else "another process"
        super().__init__(f"data directory {directory} is in use by {owner}; stop it or choose another directory")
        self.directory = directory
        self.owner_pid = owner_pid


def fsync_dir(directory: Path) -> None:
    """Make the names in ``directory`` durable. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path, *, mode: int = 0o700, inner: bool = False) -> None:
    """Make `directory` with permission bits ``mode``, missing parents with 0755 at most, and all these names durable.

    Existing names are made durable too, because the process that made them may have been killed before it did so, but
    once in this process; for an `inner` directory, whose parent was made by this function, only its own name. Raises
    OSError.
    """
    missing = [each for each in (directory, *directory.parents) if not each.is_dir()]
    whole = directory.absolute()
    if not missing and whole in _DURABLE:
        return
    for each in reversed(missing):
        each.mkdir(mode=mode if each is directory else 0o755, exist_ok=True)
    is_durable = True
    for each in (directory,) if inner else (directory, *directory.absolute().parents):
        try:
            fsync_dir(each.parent)
        except OSError as error:
            if each in missing or error.errno not in _NOT_OURS:
                raise
            is_durable = False
    if is_durable:
        _DURABLE.add(whole)


_DURABLE: set[Path] = set()
"""Directories whose names this process has made durable: a log is opened again for each role."""

_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL})
"""Why the names in a directory above ours cannot be flushed; then it is not one that a start of ours has made."""


def atomic_replace(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write ``data`` as the whole content of ``path``, durably, with permission bits ``mode``. Raises OSError."""
    atomic_write(path, (data,), mode=mode)


def atomic_write(path: Path, pieces: Iterable[bytes], *, mode: int = 0o600) -> None:
    """Do what :func:`atomic_replace` does with a content that is never in memory as a whole. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        try:
            os.fchmod(descriptor, mode)  # the umask must not decide how secret a password file is
            for piece in pieces:
                _write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_dir(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class DirectoryLock:
    """An exclusive advisory lock on a directory, held until closed or the process ends.

    The lock is an flock on ``directory/lock``; the file holds the owner's process id in decimal. It is never deleted:
    deleting a lock file lets two processes lock two different files of one name.
    """

    __slots__ = ("_descriptor", "directory")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner_pid(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            raise DirectoryLocked(directory, owner) from error
        line = f"{os.getpid()}\n".encode()
        if os.pread(self._descriptor, 32, 0) != line:  # cut first, a file costs some file systems a flush
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, line, 0)

    def close(self) -> None:
        """Release the lock; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _owner_pid(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0


T = TypeVar("T")


def fingerprint(path: Path) -> tuple[int, int, int, int] | None:
    """Return a value that changes with the file and its permissions; None when there is no file."""
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

    async def refresh(self, *, now: bool = False) -> None:
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
            # Retried at each check, since the cause may pass without a change; reported once.
            if told_again or str(error) != self._told:
                self._told = str(error)
                self._failed(error)
            return
        if fingerprint(self.path) != found:
            return  # it changed while it was read; the next check reads it again
        self._in_force, self._told = found, ""
        self._applied(content)
