"""Damages the data directory of a stopped server as a power cut or a bad disk does.

    lost tail    bytes written to the log but never flushed are lost, all of them or all but the first
    lost epochs  the list of epochs is truncated or missing
    bit flip     one bit of a flushed record is inverted
    torn journal a partly written entry follows the entries of a controller's journal

The flushed part of the log ends at the largest position that the broker's files prove; only the bit flip touches it.
Thread rule: blocks; no other process uses the directory in the meantime.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

from broker.store.index.tail import read_durable
from broker.store.log.epoch_file import NAME as EPOCHS
from broker.store.log.metadata import load_checkpoint, load_mark
from controller.consensus.journal import MAGIC

TORN_BYTES_MAX = 3_000
_ENTRY_HEAD = struct.Struct("<III")
FLIP_BYTES = 8 * 1024 * 1024
"""Largest distance of a flip below the flushed end, because older data may be about to expire."""


def flushed_end(data: Path) -> int:
    """The log position up to which everything was flushed, as the files prove."""
    mark, checkpoint = load_mark(data), load_checkpoint(data)
    positions = [read_durable(data / "index" / "tail")]
    positions += [mark.position] if mark is not None else []
    positions += [checkpoint.position] if checkpoint is not None else []
    return max(positions)


def lose_tail(data: Path, chance: random.Random) -> dict[str, Any]:
    """Lose what was never flushed, or leave its first bytes; returns what was done."""
    flushed = flushed_end(data)
    segments = _segments(data)
    written = sum(
        _clear(file, max(0, flushed - base), chance) for base, file in segments if base + file.stat().st_size > flushed
    )
    torn = 0
    for base, file in segments:
        if not written and 0 < flushed - base < file.stat().st_size and chance.random() < 0.7:
            torn = _tear(file, flushed - base, chance)
    return {"flushed": flushed, "lost_bytes": written, "torn_bytes": torn}


def lose_epochs(data: Path, chance: random.Random) -> dict[str, Any]:
    """Truncate the list of epochs, or lose it; returns what was done."""
    path = data / EPOCHS
    if not path.exists():
        return {"left_bytes": 0}
    size = path.stat().st_size
    if chance.random() < 0.3:
        path.unlink()
        return {"left_bytes": 0, "lost": True}
    left = chance.randrange(size - 1)  # without its last line feed alone it is complete
    with path.open("r+b") as stream:
        stream.truncate(left)
    return {"left_bytes": left, "lost_bytes": size - left}


def flip_bit(data: Path, chance: random.Random) -> dict[str, Any]:
    """Flip one bit of flushed data; returns which."""
    flushed = flushed_end(data)
    places = [(base, file) for base, file in _segments(data) if base < flushed and base + file.stat().st_size > 0]
    if not places or flushed <= places[0][0]:
        return {"position": -1}
    low = max(places[0][0], flushed - FLIP_BYTES)
    position, bit = chance.randrange(low, flushed), chance.randrange(8)
    base, file = next((base, file) for base, file in reversed(places) if base <= position)
    with file.open("r+b") as stream:
        stream.seek(position - base)
        byte = stream.read(1)[0] ^ 1 << bit
        stream.seek(position - base)
        stream.write(bytes([byte]))
    return {"position": position, "bit": bit}


def tear_journal(data: Path, chance: random.Random) -> dict[str, Any]:
    """Add the beginning of an entry to a controller's journal; returns its length."""
    if not (data / "consensus").exists():
        return {"torn_bytes": 0}  # killed before the first start was done
    entry = _ENTRY_HEAD.pack(MAGIC, 200, 0) + bytes(range(1, 200))
    torn = entry[: chance.randrange(1, len(entry))]
    with (data / "consensus" / "journal").open("ab") as stream:
        stream.write(torn)
    return {"torn_bytes": len(torn)}


def _segments(data: Path) -> list[tuple[int, Path]]:
    """Position of the first byte -> file, oldest first; none where a kill came before the first start was done."""
    return sorted((int(file.name), file) for file in (data / "log").glob("[0-9]*"))


def _clear(file: Path, begin: int, chance: random.Random) -> int:
    """Write zeros from a position on, or from a few bytes after it; returns how many bytes they replaced."""
    with file.open("r+b") as stream:
        stream.seek(begin)
        held = len(stream.read().rstrip(b"\0"))
        kept = chance.randrange(held) if held and chance.random() < 0.5 else 0
        stream.seek(begin + kept)
        stream.write(bytes(held - kept))
    return held - kept


def _tear(file: Path, end: int, chance: random.Random) -> int:
    """Put the beginning of something that looks like a record after the end."""
    with file.open("r+b") as stream:
        size = min(end, TORN_BYTES_MAX, file.stat().st_size - end)
        stream.seek(end - size)
        piece = stream.read(size)[: chance.randrange(1, size + 1)]
        stream.seek(end)
        stream.write(piece)
    return len(piece)
