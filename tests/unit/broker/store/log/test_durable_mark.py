"""The mark: the last word counts, a write cut short costs one word, nothing falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.log.durable_mark import NAME, SLOT_BYTES, DurableMark, Mark, load_mark, lower_mark


def test_the_last_word_counts(tmp_path: Path) -> None:
    """Also after another process went on."""
    assert load_mark(tmp_path) is None
    mark = DurableMark(tmp_path)
    for position in (10, 20, 30):
        mark.save(Mark(1, position, position + 5))
        assert load_mark(tmp_path) == Mark(1, position, position + 5)
    DurableMark(tmp_path).save(Mark(2, 40, 50))
    assert load_mark(tmp_path) == Mark(2, 40, 50)
    assert (tmp_path / NAME).stat().st_size == 2 * SLOT_BYTES
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_nothing_falls(tmp_path: Path) -> None:
    """Marks of two jobs may come in the wrong order."""
    mark = DurableMark(tmp_path)
    mark.save(Mark(3, 100, 7))
    mark.save(Mark(3, 90, 9))
    assert load_mark(tmp_path) == Mark(3, 100, 9)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_torn_slot_leaves_the_other(tmp_path: Path, slot: int) -> None:
    """One of the two last marks is there, whichever slot is hurt."""
    mark = DurableMark(tmp_path)
    for position in (10, 20, 30):
        mark.save(Mark(1, position, 0))
    data = bytearray((tmp_path / NAME).read_bytes())
    data[slot * SLOT_BYTES + 20] ^= 1
    (tmp_path / NAME).write_bytes(data)
    found = load_mark(tmp_path)
    assert found is not None
    assert found.position in (20, 30)
    DurableMark(tmp_path).save(Mark(1, 40, 0))
    assert load_mark(tmp_path) == Mark(1, 40, 0)


def test_no_readable_slot_is_told(tmp_path: Path) -> None:
    """A file that says nothing is not the same as none."""
    (tmp_path / NAME).write_bytes(bytes(100))
    with pytest.raises(CorruptIndex, match="neither"):
        load_mark(tmp_path)
    DurableMark(tmp_path).save(Mark(1, 1, 1))


def test_a_cut_lowers_what_otherwise_never_falls(tmp_path: Path) -> None:
    """Both slots say it, whatever they said, and later marks count on from there."""
    DurableMark(tmp_path).save(Mark(5, 900, 7))
    lower_mark(tmp_path, Mark(3, 100, 0))
    assert load_mark(tmp_path) == Mark(3, 100, 0)
    DurableMark(tmp_path).save(Mark(3, 200, 1))
    assert load_mark(tmp_path) == Mark(3, 200, 1)
    lower_mark(tmp_path, Mark())
    assert load_mark(tmp_path) == Mark()
