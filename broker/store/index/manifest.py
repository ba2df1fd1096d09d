"""The MANIFEST names the live runs; what it does not name does not exist.

    index/MANIFEST             one sealed line of JSON: next_file_id, end_position, offsets_id, runs (ids, oldest first)
                               and confirmed_position where the runs hold more than the group had confirmed
    index/offsets-<10 digits>  magic "LMQOFFS1" | count u64 | next_offset i64[count] | crc32c u32

The offsets file holds each queue's next offset as of `end_position`, because queues whose records have all expired are
in no run. Invariant: file ids are never used twice, the next one comes from here; everything in the log below
`end_position` (and above its begin) is in the named runs; a MANIFEST is renamed into place only after the files it
names are durable. Thread rule: plain values; saving blocks and belongs to the index thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.errors import CorruptIndex
from broker.store.log.sealed_json import open_sealed_json, sealed_json
from remoting.native.checksum import crc32c
from runtime.files import atomic_replace

NAME = "MANIFEST"
_OFFSETS_MAGIC = b"LMQOFFS1"
_OFFSETS_HEAD = struct.Struct("<8sQ")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The live files of the index; `runs` are ids, oldest first."""

    next_file_id: int = 1
    end_position: int = 0
    offsets_id: int = 0
    runs: tuple[int, ...] = ()
    confirmed_position: int | None = None
    """Up to where the group had confirmed what the runs hold; None: all of it."""

    @property
    def confirmed(self) -> int:
        """Up to where everything in the runs is confirmed."""
        return self.end_position if self.confirmed_position is None else self.confirmed_position


def offsets_path(directory: Path, file_id: int) -> Path:
    """Return the offsets file `file_id`."""
    return directory / f"offsets-{file_id:010d}"


def save_offsets(path: Path, next_offsets: npt.NDArray[Any]) -> None:
    """Write the next offset of every queue durably. Raises OSError."""
    data = _OFFSETS_HEAD.pack(_OFFSETS_MAGIC, len(next_offsets)) + next_offsets.astype("<i8").tobytes()
    atomic_replace(path, data + struct.pack("<I", crc32c(data)), mode=0o600)


def load_offsets(path: Path) -> npt.NDArray[np.int64]:
    """Return the next offset of every queue. Raises CorruptIndex."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptIndex(path, "the manifest names it but it is not there") from error
    if len(data) < 20 or struct.unpack("<I", data[-4:])[0] != crc32c(data[:-4]):
        raise CorruptIndex(path, "its checksum does not match")
    magic, count = _OFFSETS_HEAD.unpack_from(data)
    if magic != _OFFSETS_MAGIC or len(data) != _OFFSETS_HEAD.size + 8 * count + 4:
        raise CorruptIndex(path, "it is no offsets file")
    return np.frombuffer(data, "<i8", count, _OFFSETS_HEAD.size).copy()


def save_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the MANIFEST durably. Raises OSError."""
    value: dict[str, Any] = {
        "end_position": manifest.end_position,
        "next_file_id": manifest.next_file_id,
        "offsets_id": manifest.offsets_id,
        "runs": manifest.runs,
    }
    if manifest.confirmed_position is not None:
        value["confirmed_position"] = manifest.confirmed_position
    atomic_replace(directory / NAME, sealed_json(value), mode=0o600)


def load_manifest(directory: Path) -> Manifest | None:
    """Return the MANIFEST, None when there is none yet. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / NAME)
    if value is None:
        return None
    try:
        confirmed = value.get("confirmed_position")
        return Manifest(
            next_file_id=int(value["next_file_id"]),
            end_position=int(value["end_position"]),
            offsets_id=int(value["offsets_id"]),
            runs=tuple(int(run) for run in value["runs"]),
            confirmed_position=None if confirmed is None else int(confirmed),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / NAME, f"it lacks {error}") from error
