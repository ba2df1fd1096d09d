"""A disk that loses data: the directory of a store as a power cut would leave it.

What fdatasync has not covered may be present, lost, or present in part, sector by sector and in any order. Metadata
files are as the store left them, because it makes each of them durable before it counts on it; the shared tail file is
memory and may be anything.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.sim.log_judge import group_end

SECTOR = 512


def durable_position(store) -> int:
    """Log position below which the store has reported bytes as durable.

    An index run may end inside a large atomic group, but the flush before it covered the whole group.
    """
    store._site.thread.drain()
    proved = max(
        store.positions.flushed, store._parts.opened.index.manifest.end_position, store._parts.snapshots.saved_position
    )
    return group_end(store.directory, proved)


def crash_copy(store, target: Path, seed: int) -> int:
    """Copy the directory of an open store as it would be after a power cut now; return the durable position."""
    chance = random.Random(seed)
    durable = durable_position(store)
    shutil.copytree(store.directory, target)
    (target / "lock").unlink(missing_ok=True)
    mood = chance.choice(("keep", "lose", "mixed"))
    for path in sorted((target / "log").iterdir()):
        if path.name.isdigit():
            forget(path, max(0, durable - int(path.name)), mood, chance)
    tail = target / "index" / "tail"
    if chance.random() < 0.5:
        tail.write_bytes(bytes(tail.stat().st_size))
    return durable


def forget(path: Path, keep: int, mood: str, chance: random.Random) -> None:
    """Lose sectors of the file after its first `keep` bytes."""
    data = bytearray(path.read_bytes())
    for start in range(keep // SECTOR * SECTOR, len(data), SECTOR):
        if mood == "lose" or (mood == "mixed" and chance.random() < 0.4):
            first = max(start, keep)
            data[first : start + SECTOR] = bytes(min(start + SECTOR, len(data)) - first)
    path.write_bytes(data)
