"""CHECKPOINT and DURABLE: their content, and what makes them unreadable."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.log.metadata import (
    CHECKPOINT_NAME,
    MARK_NAME,
    SLOT_BYTES,
    Checkpoint,
    DurableMark,
    Mark,
    load_checkpoint,
    load_mark,
    lower_mark,
    save_checkpoint,
    sealed_json,
)


def test_round_trip_and_privacy(tmp_path: Path) -> None:
    """None at first, then what was saved, in a private file."""
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, Checkpoint(3, 4096, clean=True))
    assert load_checkpoint(tmp_path) == Checkpoint(3, 4096, clean=True)
    assert (tmp_path / CHECKPOINT_NAME).stat().st_mode & 0o777 == 0o600


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """The seal covers the whole line."""
    save_checkpoint(tmp_path, Checkpoint(3, 4096, clean=False))
    data = (tmp_path / CHECKPOINT_NAME).read_bytes()
    for at in range(len(data) - 1):
        (tmp_path / CHECKPOINT_NAME).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptIndex):
            load_checkpoint(tmp_path)


def test_missing_field_is_named(tmp_path: Path) -> None:
    """A sealed file of something else."""
    (tmp_path / CHECKPOINT_NAME).write_bytes(sealed_json({"epoch": 1}))
    with pytest.raises(CorruptIndex, match="position"):
        load_checkpoint(tmp_path)


def test_the_last_mark_counts(tmp_path: Path) -> None:
    """Also after another process continued."""
    assert load_mark(tmp_path) is None
    mark = DurableMark(tmp_path)
    for position in (10, 20, 30):
        mark.save(Mark(1, position, position + 5))
        assert load_mark(tmp_path) == Mark(1, position, position + 5)
    DurableMark(tmp_path).save(Mark(2, 40, 50))
    assert load_mark(tmp_path) == Mark(2, 40, 50)
    assert (tmp_path / MARK_NAME).stat().st_size == 2 * SLOT_BYTES
    assert (tmp_path / MARK_NAME).stat().st_mode & 0o077 == 0


def test_no_mark_falls(tmp_path: Path) -> None:
    """Marks of two jobs may come in the wrong order."""
    mark = DurableMark(tmp_path)
    mark.save(Mark(3, 100, 7))
    mark.save(Mark(3, 90, 9))
    assert load_mark(tmp_path) == Mark(3, 100, 9)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_slot_leaves_the_other(tmp_path: Path, slot: int) -> None:
    """One of the two last marks survives, whichever slot is damaged."""
    mark = DurableMark(tmp_path)
    for position in (10, 20, 30):
        mark.save(Mark(1, position, 0))
    data = bytearray((tmp_path / MARK_NAME).read_bytes())
    data[slot * SLOT_BYTES + 20] ^= 1
    (tmp_path / MARK_NAME).write_bytes(data)
    found = load_mark(tmp_path)
    assert found is not None
    assert found.position in (20, 30)
    DurableMark(tmp_path).save(Mark(1, 40, 0))
    assert load_mark(tmp_path) == Mark(1, 40, 0)


def test_no_readable_slot_is_reported(tmp_path: Path) -> None:
    """A file without a readable slot is not the same as no file."""
    (tmp_path / MARK_NAME).write_bytes(bytes(100))
    with pytest.raises(CorruptIndex, match="neither"):
        load_mark(tmp_path)
    DurableMark(tmp_path).save(Mark(1, 1, 1))


def test_a_truncation_lowers_what_otherwise_never_falls(tmp_path: Path) -> None:
    """Both slots have the lowered mark, whatever they had, and later marks are numbered from there."""
    DurableMark(tmp_path).save(Mark(5, 900, 7))
    lower_mark(tmp_path, Mark(3, 100, 0))
    assert load_mark(tmp_path) == Mark(3, 100, 0)
    DurableMark(tmp_path).save(Mark(3, 200, 1))
    assert load_mark(tmp_path) == Mark(3, 200, 1)
    lower_mark(tmp_path, Mark())
    assert load_mark(tmp_path) == Mark()
