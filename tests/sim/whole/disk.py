"""The disks of the hosts: real files in memory, and what of them a power cut leaves.

Of each file the content at its last fsync is known by its inode, of each directory the names at its last fsync. A power
cut keeps of what was written later all, nothing, or some sectors; of names that were made, moved or removed since then
each by chance. A killed process leaves everything as it is. A cut may also come in the middle of what a process does:
`cut_after` counts its writes, fsyncs and renames.
Invariant: only the seed's generator decides. Every fsync takes its time: the process waits.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pytest

from runtime import files
from tests.sim.whole.loop import Host, World

SECTOR = 512
OPERATIONS = ("fsync", "fdatasync", "replace", "rename", "pwrite")


class PowerCut(BaseException):
    """In the middle of what a process does."""


class Disks:
    """A directory for each host below `folder`."""

    def __init__(self, world: World, folder: Path) -> None:
        self.folder = folder
        self.flush_s: dict[str, float] = {}
        """Host -> time of an fsync."""
        self.operations = 0
        self._world = world
        self._chance = random.Random(f"{world.seed}/disks")
        self._hosts: dict[str, Host] = {}
        self._content: dict[int, bytes] = {}
        """Inode -> what of it is durable."""
        self._names: dict[str, dict[str, int]] = {}
        """Directory -> durable names and their inodes."""
        self._cuts: dict[str, int] = {}
        self._locks: dict[str, list[tuple[int, str]]] = {}
        self._flock = fcntl.flock
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in OPERATIONS}

    def add(self, host: Host) -> Path:
        """The directory of a host."""
        self._hosts[host.name] = host
        directory = self.folder / host.name
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch the operating system's calls."""
        patch.setattr(os, "fsync", self._sync)
        patch.setattr(os, "fdatasync", self._sync)
        patch.setattr(os, "pwrite", self._pwrite)
        patch.setattr(fcntl, "flock", self._lock)
        for name in ("replace", "rename"):
            patch.setattr(os, name, self._moving(self._real[name]))

    # -- what is watched

    def cut_after(self, host: Host, operations: int) -> None:
        """Cut the power at one of the next operations."""
        self._cuts[host.name] = operations

    def is_cut(self, host: Host) -> bool:
        """Whether the power is off in the middle of something."""
        return self._cuts.get(host.name) == 0

    def spare(self) -> None:
        """Cut no power any more."""
        self._cuts = {name: left for name, left in self._cuts.items() if left == 0}

    def flush_time_s(self, host: Host) -> float:
        """How long the next fsync takes."""
        return self.flush_s.get(host.name, 0.0005) * self._chance.uniform(0.3, 1.3)

    def _host(self, path: str) -> Host | None:
        prefix = f"{self.folder}/"
        return self._hosts.get(path[len(prefix) :].split("/", 1)[0]) if path.startswith(prefix) else None

    def _step(self, path: str) -> Host | None:
        host = self._host(path)
        if host is None:
            return None
        self.operations += 1
        left = self._cuts.get(host.name)
        if left is not None:
            if left <= 1:
                self._cuts[host.name] = 0
                raise PowerCut(host.name)
            self._cuts[host.name] = left - 1
        return host

    def _sync(self, descriptor: int) -> None:
        host = self._step(path := _path(descriptor))
        if host is None:
            return
        state = os.fstat(descriptor)
        if S_ISDIR(state.st_mode):
            self._names[path] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            # The descriptor may be for writing alone, and the name another one by now.
            with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as file:  # noqa: PTH123 - as `_path`
                self._content[state.st_ino] = file.read()
        if host.loop is not None:
            host.block(self.flush_time_s(host))

    def _lock(self, descriptor: int, how: int) -> None:
        self._flock(descriptor, how)
        path = _path(descriptor)
        host = self._host(path)
        if host is not None:
            self._locks.setdefault(host.name, []).append((descriptor, path))

    def unlock(self, host: Host) -> None:
        """The kernel frees what a dead process had locked."""
        for descriptor, path in self._locks.pop(host.name, ()):
            try:
                if _path(descriptor) == path:
                    self._flock(descriptor, fcntl.LOCK_UN)
            except OSError:  # it was closed before
                pass

    def _pwrite(self, descriptor: int, data: Any, at: int) -> int:
        self._step(_path(descriptor))
        return int(self._real["pwrite"](descriptor, data, at))

    def _moving(self, real: Callable[..., Any]) -> Callable[..., None]:
        def move(source: Any, target: Any, **more: Any) -> None:
            self._step(str(Path(target).absolute()))
            real(source, target, **more)

        return move

    def durable_log(self, host: Host) -> list[bytes]:
        """What of the files of its message log a power cut would leave for certain."""
        directory = str(self.folder / host.name / "broker" / "log")
        return [self._content.get(inode, b"") for inode in self._names.get(directory, {}).values()]

    # -- power

    def power_cut(self, host: Host) -> None:
        """Leave what survives."""
        self._cuts.pop(host.name, None)
        files._DURABLE.clear()  # what a process knows of its names is not known to the next
        self._settle(self.folder / host.name, self._chance.choice(("keep", "lose", "mixed", "mixed")))

    def wipe(self, host: Host) -> None:
        """An empty disk in its place."""
        files._DURABLE.clear()
        self._cuts.pop(host.name, None)
        directory = self.folder / host.name
        shutil.rmtree(directory)
        directory.mkdir()
        for each in [each for each in self._names if each == str(directory) or each.startswith(f"{directory}/")]:
            del self._names[each]

    def _settle(self, directory: Path, mood: str) -> None:
        durable = self._names.get(str(directory), {})
        live = {each.name: each.inode() for each in os.scandir(directory)}
        for name in sorted(durable.keys() | live.keys()):
            path = directory / name
            if path.is_dir():
                if name not in durable and not self._keeps(mood):
                    shutil.rmtree(path)
                else:
                    self._settle(path, mood)
            elif self._settle_file(path, durable.get(name), live.get(name), mood):
                self._content[path.stat().st_ino] = path.read_bytes()
        self._names[str(directory)] = {each.name: each.inode() for each in os.scandir(directory)}

    def _settle_file(self, path: Path, durable: int | None, live: int | None, mood: str) -> bool:
        """Leave a file under its name, with one content or the other; whether there is one."""
        if durable == live:
            assert live is not None
            self._forget(path, live, mood)
        elif self._keeps(mood):
            if live is None:
                return False  # it was removed, and that holds
            self._forget(path, live, mood)
        elif durable is None:
            path.unlink()
            return False
        else:
            self._write(path, self._content.get(durable, b""))
        return True

    def _keeps(self, mood: str) -> bool:
        return mood == "keep" or (mood == "mixed" and self._chance.random() < 0.5)

    def _forget(self, path: Path, inode: int, mood: str) -> None:
        """Lose sectors of what was not flushed."""
        durable, now = self._content.get(inode, b""), path.read_bytes()
        if now == durable or mood == "keep":
            return
        if mood == "lose":
            self._write(path, durable)
            return
        size = self._chance.choice((len(durable), len(now)))
        left = bytearray(durable[:size].ljust(size, b"\0"))
        for at in range(0, size, SECTOR):
            if now[at : at + SECTOR] != durable[at : at + SECTOR] and self._chance.random() < 0.5:
                left[at : min(at + SECTOR, size)] = now[at : at + SECTOR].ljust(min(SECTOR, size - at), b"\0")
        self._write(path, bytes(left))

    def _write(self, path: Path, data: bytes) -> None:
        """In a file of its own: former processes may still have the old one mapped."""
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        fresh = path.with_name(f"{path.name}.fresh")
        fresh.write_bytes(data)
        fresh.chmod(mode)
        self._real["replace"](fresh, path)


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - hundreds of times in a schedule
