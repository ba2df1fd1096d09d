"""What a power cut leaves of a directory: a disk that knows only what was made durable, found out call by call.

Within `with disks`, each `os.fsync` and `os.fdatasync` of this process on something below a platter's directory is
noted: of a file its content, of a directory its names. A power cut makes another directory of that: of what was changed
since, sectors and names may have reached the disk or not, each for itself; a renamed file has one of its two names. The
real directory lies in memory (`/dev/shm`), so nothing has to be flushed for it.

Invariant: a byte or a name that nobody made durable survives a power cut by chance alone; one that somebody did
survives until it is changed. Files are known by their inode numbers, which a file system of memory does not use again.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR
from typing import Self

SECTOR = 64
"""Bytes that reach the disk together: small, as are the records of a schedule."""
KEPT = 0.6
"""Share of what was not made durable that is there after a mixed power cut."""
MOODS = ("keep", "lose", "mixed")


class PowerLost(BaseException):
    """The machine has lost its power in the middle of what it did."""


class Platter:
    """The disk of one machine; `directory` is another one after each power cut, also in the middle of something."""

    def __init__(self, base: Path, chance: random.Random) -> None:
        self._base, self._chance = base, chance
        self._number = 0
        self._files: dict[int, bytes] = {}
        """Inode -> content as it was made durable."""
        self._names: dict[int, dict[str, int]] = {}
        """Inode of a directory -> its names as they were made durable, with their inodes."""
        self.fuse = 0
        """The power goes before so many calls have made anything durable; 0: it stays."""
        self.is_out = False
        """Whether it went like that, and the process still has to learn of it."""
        self._former: Path | None = None
        self._mount()

    def _mount(self) -> None:
        """Begin another directory, which is empty and durable."""
        self._number += 1
        self.directory = self._base / str(self._number)
        self.directory.mkdir(parents=True, mode=0o700)
        self._files.clear()
        self._names.clear()
        self._root = self.directory.stat().st_ino
        self._names[self._root] = {}

    def synced(self, descriptor: int) -> None:
        """A file or a directory was made durable."""
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                self.cut_power("")
                self.is_out = True
                raise PowerLost
        state = os.fstat(descriptor)
        if S_ISDIR(state.st_mode):
            self._names[state.st_ino] = {each.name: each.inode() for each in os.scandir(descriptor)}
        else:
            # The descriptor may be for writing alone, and the name another one by now.
            self._files[state.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def wipe(self) -> None:
        """A new disk takes its place."""
        self._leave()
        self._mount()

    def durable(self, folder: str, start: int, end: int) -> bytes:
        """What files named by their first positions have durably of [start, end), up to the first gap."""
        names = self._names.get(self._names[self._root].get(folder, 0), {})
        found, at = bytearray(), start
        for base, inode in sorted((int(name), inode) for name, inode in names.items() if name.isdigit()):
            data = self._files.get(inode, b"")
            if base <= at < min(end, base + len(data)):
                found += data[at - base : end - base]
                at = start + len(found)
        return bytes(found)

    def rot(self, folder: str, position: int) -> None:
        """Turn a bit over, of the byte at a position that files are named by, on the disk and for whoever reads it."""
        paths = [each for each in (self.directory / folder).iterdir() if each.name.isdigit()]
        path = max(each for each in paths if int(each.name) <= position)
        inode, at = path.stat().st_ino, position - int(path.name)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([path.read_bytes()[at] ^ 1]))
        durable = bytearray(self._files[inode])
        durable[at] ^= 1
        self._files[inode] = bytes(durable)

    # -- a power cut --------------------------------------------------------------------------------------------------

    def cut_power(self, mood: str) -> None:
        """Leave what a power cut leaves, in another directory."""
        former, root, names, files = self._leave(), self._root, self._names, self._files
        self._names, self._files = {}, {}
        left = _Remains(names, files, mood or self._chance.choice(MOODS), self._chance)
        self._mount()
        self._fill(self.directory, left, root, former)

    def _leave(self) -> Path:
        """Go on in another directory; the former one stays until then, for a process that is still at it."""
        if self._former is not None:
            shutil.rmtree(self._former)
        self._former = self.directory
        return self.directory

    def _fill(self, target: Path, left: _Remains, inode: int, now: Path | None) -> None:
        """Make the directory that is left of one, with all that is in it, durable from now on."""
        for name, (child, path) in left.entries(inode, now).items():
            made = target / name
            if left.is_directory(child, path):
                made.mkdir(mode=0o700)
                self._fill(made, left, child, path)
            else:
                made.write_bytes(left.content(child, path))
                self._files[made.stat().st_ino] = made.read_bytes()
        state = target.stat()
        self._names[state.st_ino] = {each.name: each.inode() for each in os.scandir(target)}


class _Remains:
    """What is left of one directory by a power cut."""

    def __init__(
        self, names: dict[int, dict[str, int]], files: dict[int, bytes], mood: str, chance: random.Random
    ) -> None:
        self._names, self._files, self._mood, self._chance = names, files, mood, chance

    def _arrived(self) -> bool:
        """Whether a change has reached the disk."""
        return self._mood == "keep" or (self._mood == "mixed" and self._chance.random() < KEPT)

    def is_directory(self, inode: int, path: Path | None) -> bool:
        """Whether it is one."""
        return inode in self._names if path is None else path.is_dir()

    def entries(self, inode: int, now: Path | None) -> dict[str, tuple[int, Path | None]]:
        """Name -> inode, and where it is found now; None when it is nowhere any more."""
        durable = self._names.get(inode, {})
        present = {each.name: each.inode() for each in os.scandir(now)} if now is not None else durable
        paths = {found: now / name for name, found in present.items()} if now is not None else {}
        left: dict[str, int] = {}
        for name in sorted({*durable, *present}):
            before, after = durable.get(name), present.get(name)
            chosen = after if before == after or self._arrived() else before
            if chosen is not None:
                left[name] = chosen
        for name, child in sorted(left.items()):
            twin = next((other for other in sorted(left) if other != name and left[other] == child), None)
            if twin is not None and name in left and present.get(name) != child:
                del left[name]  # it was renamed, and has its new name
        for name, child in sorted(durable.items()):
            if child in paths and child not in left.values() and name not in left:
                left[name] = child  # it was renamed, and has one of its names
        return {name: (child, paths.get(child)) for name, child in left.items()}

    def content(self, inode: int, path: Path | None) -> bytes:
        """The content of a file."""
        durable = self._files.get(inode, b"")
        if path is None or self._mood == "lose":
            return durable
        present = path.read_bytes()
        if self._mood == "keep" or present == durable:
            return present
        size = len(present) if self._arrived() else len(durable)
        left = bytearray(durable[:size].ljust(size, b"\0"))
        for at in range(0, min(size, len(present)), SECTOR):
            piece = present[at : min(at + SECTOR, size)]
            if piece != left[at : at + len(piece)] and self._arrived():
                left[at : at + len(piece)] = piece
        return bytes(left)


class Disks:
    """The disks of one schedule; within `with`, what this process makes durable is noted for them."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")
        self.room = Path(tempfile.mkdtemp(prefix="lightmq-sim-", dir=memory if memory.is_dir() else None))
        self.platters: list[Platter] = []
        self.at_end: list[Callable[[], None]] = []
        """Called before the directories go."""
        self._calls = os.fsync, os.fdatasync

    def add(self, name: str, chance: random.Random) -> Platter:
        """The disk of a machine."""
        self.platters.append(Platter(self.room / name, chance))
        return self.platters[-1]

    def __enter__(self) -> Self:
        os.fsync = os.fdatasync = self._synced
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.at_end:
            each()
        os.fsync, os.fdatasync = self._calls
        shutil.rmtree(self.room)

    def _synced(self, descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        for each in self.platters:
            if path.startswith(str(each.directory)):
                each.synced(descriptor)
