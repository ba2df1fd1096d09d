"""The MANIFEST and its offsets file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker.store.errors import CorruptIndex
from broker.store.index.manifest import (
    NAME,
    Manifest,
    load_manifest,
    load_offsets,
    offsets_path,
    save_manifest,
    save_offsets,
)
from broker.store.log.sealed_json import sealed_json


def test_round_trip(tmp_path: Path) -> None:
    """What is saved is loaded."""
    assert load_manifest(tmp_path) is None
    manifest = Manifest(9, 4096, 8, (3, 7))
    save_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == manifest
    assert manifest.confirmed == 4096
    save_manifest(tmp_path, partly := Manifest(9, 4096, 8, (3, 7), confirmed_position=0))
    assert load_manifest(tmp_path) == partly
    assert partly.confirmed == 0
    save_offsets(offsets_path(tmp_path, 8), np.array([5, 0, 7]))
    assert load_offsets(offsets_path(tmp_path, 8)).tolist() == [5, 0, 7]


def test_damage_is_an_error(tmp_path: Path) -> None:
    """Missing, flipped, incomplete."""
    path = offsets_path(tmp_path, 1)
    with pytest.raises(CorruptIndex, match="not there"):
        load_offsets(path)
    save_offsets(path, np.array([5]))
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndex):
        load_offsets(path)
    (tmp_path / NAME).write_bytes(sealed_json({"runs": []}))
    with pytest.raises(CorruptIndex, match="next_file_id"):
        load_manifest(tmp_path)
