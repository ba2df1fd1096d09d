"""The controllers' directories as a disk that a power cut may undo: real files, and what of them is durable.

A power cut keeps of each file what was fsynced, and by chance all or a part of what was written behind it; a rename
whose directory was not fsynced by chance never happened. It may come in the middle of an operation: `cut_after` counts
the operations on the disk (writes, fsyncs, renames) until it does.
Invariant: only what the seed's generator draws decides.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


class PowerCut(BaseException):
    """In the middle of what a node does; nothing but the world may catch it."""


class Disk:
    """All directories of one world. `content` is what of each file is durable once its name is."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._content: dict[str, bytes] = {}
        self._renamed: dict[str, bytes | None] = {}
        """Files with a new name that is not yet durable, and the contents under that name until it is."""
        self._cuts: dict[str, int] = {}
        self._real = {name: getattr(os, name) for name in ("fsync", "fdatasync", "replace", "rename", "pwrite")}

    def cut_after(self, directory: Path, operations: int) -> None:
        """Cut this node's power at one of its next operations."""
        self._cuts[str(directory)] = operations

    def spare(self) -> None:
        """Let no cut come any more."""
        self._cuts.clear()

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch the operating system's calls."""
        patch.setattr(os, "fsync", self._sync)
        patch.setattr(os, "fdatasync", self._sync)
        patch.setattr(os, "replace", self._moved(self._real["replace"]))
        patch.setattr("pysyncobj.serializer.atomicReplace", self._moved(self._real["rename"]))
        patch.setattr(os, "pwrite", self._write)

    def power_cut(self, directory: Path) -> None:
        """Leave what survives."""
        self._cuts.pop(str(directory), None)
        for path in sorted(directory.iterdir()):
            if path.suffix == ".tmp":
                path.unlink()
            else:
                self._settle(path)

    def wipe(self, directory: Path) -> None:
        """An empty disk in its place."""
        shutil.rmtree(directory)
        directory.mkdir()
        for known in (self._content, self._renamed):
            for each in [each for each in known if each.startswith(f"{directory}/")]:
                del known[each]

    def _settle(self, path: Path) -> None:
        name = str(path)
        before = self._renamed.pop(name, b"")
        if before != b"" and self._chance.random() < 0.5:
            if before is None:
                self._content.pop(name, None)
                path.unlink()
                return
            self._content[name] = before
            path.write_bytes(before)
            return
        durable, live = self._content.get(name, b""), path.read_bytes()
        if live != durable:
            tail = self._chance.choice((0, len(live), self._chance.randrange(len(live) + 1)))
            self._content[name] = live[:tail] if tail > len(durable) and live.startswith(durable) else durable
            path.write_bytes(self._content[name])

    def _step(self, directory: str) -> None:
        left = self._cuts.get(directory)
        if left is not None:
            self._cuts[directory] = left - 1
            if left <= 1:
                del self._cuts[directory]
                raise PowerCut(directory)

    def _sync(self, descriptor: int) -> None:
        path = _path(descriptor)
        if path.is_dir():
            self._step(str(path))
            for each in [each for each in self._renamed if each.startswith(f"{path}/")]:
                del self._renamed[each]
            return
        self._step(str(path.parent))
        self._content[str(path)] = path.read_bytes()

    def _moved(self, real: Callable[..., None]) -> Callable[..., None]:
        def move(source: os.PathLike[str] | str, target: os.PathLike[str] | str, **options: int) -> None:
            old, new = os.fspath(source), os.fspath(target)
            self._step(str(Path(new).parent))
            real(source, target, **options)
            self._renamed.setdefault(new, self._content.get(new))
            self._content[new] = self._content.pop(old, b"")
            self._renamed.pop(old, None)

        return move

    def _write(self, descriptor: int, data: bytes, at: int) -> int:
        self._step(str(_path(descriptor).parent))
        return int(self._real["pwrite"](descriptor, data, at))


def _path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
