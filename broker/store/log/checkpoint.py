"""The one checkpoint: below `position` the log is on the disk, whatever happens to the machine.

    CHECKPOINT  one line of JSON {"clean": ..., "epoch": ..., "position": ...} and the CRC32C of that line in hex

Invariant: `position` moves only after fdatasync of the log (and, where a run belongs to it, after the run's fsync and
the rename of the MANIFEST); `epoch` is raised and durable before the first append of a start. `clean` says that nothing
lies behind `position`. A failing record below `position` is corruption, above it a torn tail.
Thread rule: plain values; saving blocks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from broker.store.errors import CorruptIndex
from broker.store.log.sealed_json import open_sealed_json, sealed_json
from runtime.files import atomic_replace

NAME = "CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Start number of the store, durable log position, and whether the last shutdown was complete."""

    epoch: int
    position: int
    clean: bool


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint durably. Raises OSError."""
    atomic_replace(directory / NAME, sealed_json(asdict(checkpoint)), mode=0o600)


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """Return the checkpoint, None in a fresh directory. Raises CorruptIndex."""
    value = open_sealed_json(directory / NAME)
    if value is None:
        return None
    try:
        return Checkpoint(int(str(value["epoch"])), int(str(value["position"])), bool(value["clean"]))
    except (KeyError, ValueError) as error:
        raise CorruptIndex(directory / NAME, f"it lacks {error}") from error
