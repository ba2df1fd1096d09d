"""A damaged disk is damaged only where it was meant to be: flushed data stays, but for the flipped bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.log.epoch_file import load_epochs, save_epochs
from broker.store.log.metadata import Checkpoint, DurableMark, Mark, save_checkpoint
from controller.consensus.journal import Journal
from tests.chaos.disks import flip_bit, flushed_end, lose_epochs, lose_tail, tear_journal

Damage = Callable[[Path, random.Random], object]
SEGMENT_BYTES = 64 * 1024
FLUSHED = SEGMENT_BYTES + 8_000
WRITTEN = 9_000
SEEDS = range(30)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two segments; the second contains 8,000 flushed bytes and 1,000 more."""
    save_checkpoint(tmp_path, Checkpoint(3, SEGMENT_BYTES, clean=False))
    DurableMark(tmp_path).save(Mark(3, FLUSHED, 0))
    save_epochs(tmp_path, [(1, 0), (3, 500)])
    (tmp_path / "log").mkdir()
    for number, size in enumerate((SEGMENT_BYTES, WRITTEN)):
        content = random.Random(number).randbytes(size).replace(b"\0", b"x").ljust(SEGMENT_BYTES, b"\0")
        (tmp_path / "log" / f"{number * SEGMENT_BYTES:020d}").write_bytes(content)
    (tmp_path / "log" / ".next").write_bytes(bytes(10))
    return tmp_path


def log(data: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((data / "log").iterdir()) if file.name.isdigit())


def test_the_flushed_end_is_the_furthest_proof(data: Path) -> None:
    """The mark and the checkpoint, without an index."""
    assert flushed_end(data) == FLUSHED


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_tail_ends_behind_what_was_flushed(data: Path, seed: int) -> None:
    """All of the rest is lost, or only its first bytes remain."""
    before = log(data)
    told = lose_tail(data, random.Random(seed))
    after = log(data)
    assert 0 < told["lost_bytes"] <= WRITTEN - 8_000
    kept = SEGMENT_BYTES + WRITTEN - told["lost_bytes"]
    assert kept >= FLUSHED
    assert after == before[:kept].ljust(len(before), b"\0")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fully_flushed_log_gets_a_torn_record(data: Path, seed: int) -> None:
    """Or stays as it is."""
    mark = DurableMark(data)
    mark.save(Mark(3, SEGMENT_BYTES + WRITTEN, 0))
    before = log(data)
    told = lose_tail(data, random.Random(seed))
    after = log(data)
    assert told["lost_bytes"] == 0
    end = SEGMENT_BYTES + WRITTEN
    assert after[:end] == before[:end]
    assert len(after[end:].rstrip(b"\0")) == told["torn_bytes"]


def test_lost_tails_differ() -> None:
    """Whole, in part, torn: the seeds of the tests above meet more than one."""
    assert len({random.Random(seed).random() < 0.5 for seed in SEEDS}) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_epochs_cannot_be_read(data: Path, seed: int) -> None:
    """Truncated or missing; a broker that never had any is left alone."""
    told = lose_epochs(data, random.Random(seed))
    if told.get("lost") is True:
        assert load_epochs(data) is None
        assert lose_epochs(data, random.Random(seed)) == {"left_bytes": 0}
    else:
        with pytest.raises(CorruptIndex):
            load_epochs(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_bit_flips(data: Path, seed: int) -> None:
    """In flushed data."""
    before = log(data)
    told = flip_bit(data, random.Random(seed))
    after = log(data)
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    assert changed == [told["position"]]
    assert changed[0] < FLUSHED
    assert before[changed[0]] ^ after[changed[0]] == 1 << told["bit"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_torn_journal_keeps_its_entries(tmp_path: Path, seed: int) -> None:
    """Whatever the length of the rest."""
    path = tmp_path / "consensus" / "journal"
    path.parent.mkdir()
    journal = Journal(path)
    journal.add((b"command", 1, 1))
    journal.sync()
    journal.close()
    whole = path.stat().st_size
    assert path.stat().st_size == whole
    told = tear_journal(tmp_path, random.Random(seed))
    assert path.stat().st_size == whole + told["torn_bytes"]
    again = Journal(path)
    assert [again[place] for place in range(len(again))] == [(b"command", 1, 1)]
    again.close()


@pytest.mark.parametrize("damage", [lose_tail, lose_epochs, flip_bit, tear_journal])
def test_a_directory_without_files_is_left_as_it_is(tmp_path: Path, damage: Damage) -> None:
    """A process on a wiped disk may be killed before it has made any."""
    damage(tmp_path, random.Random(1))
    assert list(tmp_path.iterdir()) == []
