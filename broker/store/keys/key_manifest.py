"""The MANIFEST of the key index names its live runs; what it does not name does not exist.

    keys/MANIFEST   one sealed line of JSON: next_file_id, end_position, runs (ids, oldest first)

Invariant: file ids are never used twice, the next one comes from here; every key of the log below `end_position` (and
above its begin) is in the named runs; it is renamed into place only after the runs and the log below `end_position` are
durable. Thread rule: plain values; saving blocks and belongs to the index thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.log.sealed_json import open_sealed_json, sealed_json
from runtime.files import atomic_replace

NAME = "MANIFEST"
DIRECTORY = "keys"
"""The room of the key index in a data directory."""


@dataclass(frozen=True, slots=True)
class KeyManifest:
    """The live runs of the key index, ids, oldest first."""

    next_file_id: int = 1
    end_position: int = 0
    runs: tuple[int, ...] = ()


def save_key_manifest(directory: Path, manifest: KeyManifest) -> None:
    """Replace the MANIFEST durably. Raises OSError."""
    value = {"end_position": manifest.end_position, "next_file_id": manifest.next_file_id, "runs": manifest.runs}
    atomic_replace(directory / NAME, sealed_json(value), mode=0o600)


def load_key_manifest(directory: Path) -> KeyManifest | None:
    """Return the MANIFEST, None when there is none. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / NAME)
    if value is None:
        return None
    try:
        runs = tuple(int(run) for run in value["runs"])
        return KeyManifest(int(value["next_file_id"]), int(value["end_position"]), runs)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / NAME, f"it lacks {error}") from error
