"""The checkpoint file and its seal."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.log.checkpoint import NAME, Checkpoint, load_checkpoint, save_checkpoint
from broker.store.log.sealed_json import sealed_json


def test_round_trip_and_privacy(tmp_path: Path) -> None:
    """None at first, then what was saved, in a private file."""
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, Checkpoint(3, 4096, clean=True))
    assert load_checkpoint(tmp_path) == Checkpoint(3, 4096, clean=True)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """The seal covers the whole line."""
    save_checkpoint(tmp_path, Checkpoint(3, 4096, clean=False))
    data = (tmp_path / NAME).read_bytes()
    for at in range(len(data) - 1):
        (tmp_path / NAME).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptIndex):
            load_checkpoint(tmp_path)


def test_missing_field_is_named(tmp_path: Path) -> None:
    """A sealed file of something else."""
    (tmp_path / NAME).write_bytes(sealed_json({"epoch": 1}))
    with pytest.raises(CorruptIndex, match="position"):
        load_checkpoint(tmp_path)
