"""Damage to the files of a dead process: flipped bits, zeroed blocks, truncated files."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = 4096
KINDS = ("flip", "zero", "cut")


@dataclass
class Damage:
    """One change to one log file, and the bytes before it."""

    kind: str
    path: Path
    position: int
    former: bytes = field(repr=False)

    @property
    def end(self) -> int:
        """Position after the last byte that changed."""
        return self.position + len(self.former)


def log_files(directory: Path) -> list[Path]:
    """The log files, oldest first."""
    return sorted(path for path in (directory / "log").iterdir() if path.name.isdigit())


def hurt(directory: Path, chance: random.Random, low: int, high: int, kind: str) -> Damage | None:
    """Damage the log somewhere in [low, high); None when there is nothing there."""
    files = [path for path in log_files(directory) if int(path.name) < high]
    files = [path for path in files if int(path.name) + path.stat().st_size > low]
    if not files or low >= high:
        return None
    path = chance.choice(files)
    base, size = int(path.name), path.stat().st_size
    first, last = max(low, base), min(high, base + size)
    if first >= last:
        return None
    position = chance.randrange(first, last)
    with path.open("r+b") as file:
        if kind == "cut":
            file.seek(position - base)
            former = file.read()
            os.truncate(path, position - base)
            return Damage(kind, path, position, former)
        if kind == "zero":
            position = max(first, position // BLOCK * BLOCK)
            length = min(last, (position // BLOCK + 1) * BLOCK) - position
        else:
            length = 1
        file.seek(position - base)
        former = file.read(length)
        file.seek(position - base)
        file.write(bytes(length) if kind == "zero" else bytes([former[0] ^ 1 << chance.randrange(8)]))
    return Damage(kind, path, position, former)


def hurt_metadata(directory: Path, chance: random.Random) -> str:
    """Make a file that the log can replace unreadable; return its name."""
    found = [directory / "state/SNAPSHOT", directory / "index/MANIFEST", directory / "CHECKPOINT"]
    found.append(directory / "DURABLE")
    found += sorted((directory / "index").glob("offsets-*")) + sorted((directory / "index").glob("run-*"))
    path = chance.choice([path for path in found if path.exists()])
    if path.name.startswith("run-"):
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(7)
        path.write_bytes(data)
    return path.name


def image(directory: Path, end: int) -> dict[int, bytes]:
    """The bytes of every log file below `end`."""
    return {
        int(path.name): path.read_bytes()[: max(0, end - int(path.name))] for path in log_files(directory)
    }  # fmt: skip
