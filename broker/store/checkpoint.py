"""The one checkpoint: below `position` the log is on the disk, whatever happens to the machine.

    CHECKPOINT  one line of JSON {"clean": ..., "epoch": ..., "position": ...} and the CRC32C of that line in hex

Invariant: `position` moves only after fdatasync of the log (and, where a run belongs to it, after the run's fsync and
the rename of the MANIFEST); `epoch` is raised and durable before the first append of a start. `clean` says that nothing
lies behind `position`. A failing record below `position` is corruption, above it a torn tail.
Thread rule: plain values; saving blocks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from broker.store.errors import CorruptIndex
from remoting.hot.checksum import crc32c
from runtime.files import atomic_replace

NAME = "CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Start number of the store, durable log position, and whether the last shutdown was complete."""

    epoch: int
    position: int
    clean: bool


def sealed_json(value: object) -> bytes:
    """Return `value` as one line of JSON followed by a line with its checksum."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (text, crc32c(text))


def open_sealed_json(path: Path) -> dict[str, object] | None:
    """Return the JSON object of a sealed file, None when there is no file. Raises CorruptIndex."""
    try:
        text, _, checksum = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if checksum.strip() != b"%08x" % crc32c(text):
        raise CorruptIndex(path, "its checksum does not match")
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


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
