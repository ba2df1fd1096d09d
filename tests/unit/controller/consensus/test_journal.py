"""Entries come back after every kind of end: in order, torn, cut at either side, damaged in the middle."""

from __future__ import annotations

import os

import pytest

from controller.consensus import journal as journal_module
from controller.consensus.journal import (
    FORMER_HEADER,
    HEADER,
    MAGIC,
    MAGIC_AFTER_SYNC,
    Journal,
    JournalDamaged,
)


def entries(count, first=1):
    return [(b"command %d" % number, number, 1) for number in range(first, first + count)]


@pytest.fixture
def journal(tmp_path):
    """Five entries on disk."""
    made = Journal(tmp_path / "journal")
    for entry in entries(5):
        made.add(entry)
    made.sync()
    yield made
    made.close()


def again(journal):
    journal.close()
    return Journal(journal.path)


def test_entries_come_back(journal):
    """As they were, and the next one follows."""
    found = again(journal)
    assert found.part(0) == entries(5)
    found.add((b"", 6, 2))
    assert again(found)[-1] == (b"", 6, 2)


def test_every_torn_tail_is_dropped(journal):
    """Cut at any byte, the whole entries before it are there and the file continues from them."""
    journal.close()
    data = journal.path.read_bytes()
    for length in range(len(HEADER), len(data)):
        journal.path.write_bytes(data[:length])
        found = Journal(journal.path)
        assert found.part(0) == entries(len(found))
        found.add((b"next", len(found) + 1, 1))
        assert len(again(found)) == len(found)


def test_damage_with_synced_entries_behind_it_is_refused(tmp_path):
    """Each byte of the first entries, changed: never silently fewer entries."""
    journal = Journal(tmp_path / "journal")
    for entry in entries(5):
        journal.add(entry)
        journal.sync()
    journal.close()
    data = journal.path.read_bytes()
    last = len(data) // 2
    for at in range(len(HEADER), last):
        journal.path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        with pytest.raises(JournalDamaged, match="is damaged at byte"):
            Journal(journal.path)
    journal.path.write_bytes(b"something else")
    with pytest.raises(JournalDamaged):
        Journal(journal.path)


def test_any_part_of_what_was_not_synced_may_be_missing(journal):
    """A power cut keeps the last sectors of a batch and not the first: that is a torn tail, and no damage."""
    before = journal.path.stat().st_size
    for entry in entries(3, 6):
        journal.add(entry)
    journal.close()
    data = journal.path.read_bytes()
    for at in range(before, len(data) - 40):
        journal.path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
        found = Journal(journal.path)
        assert found.part(0) == entries(len(found))
        assert 5 <= len(found) < 8
        found.close()


def test_a_journal_that_was_replaced_was_on_the_disk_as_a_whole(journal):
    """Damage anywhere in front of its last entry is refused."""
    journal.cut_head(1)
    journal.close()
    data = journal.path.read_bytes()
    journal.path.write_bytes(data[:20] + b"\xff" + data[21:])
    with pytest.raises(JournalDamaged):
        Journal(journal.path)


def test_a_file_of_version_1_is_taken_over(journal):
    """With its entries; its damage is refused as before, because it does not say what was synced."""
    journal.close()
    data = journal.path.read_bytes().replace(HEADER, FORMER_HEADER)
    data = data.replace(MAGIC_AFTER_SYNC.to_bytes(4, "little"), MAGIC.to_bytes(4, "little"))
    journal.path.write_bytes(data[:20] + b"\xff" + data[21:])
    with pytest.raises(JournalDamaged):
        Journal(journal.path)
    journal.path.write_bytes(data)
    found = Journal(journal.path)
    assert found.part(0) == entries(5)
    found.close()
    assert journal.path.read_bytes().startswith(HEADER)
    assert Journal(journal.path).part(0) == entries(5)


def test_what_a_killed_process_left_is_on_the_disk_before_it_is_used(journal, monkeypatch):
    """It may have been killed between the write and the flush."""
    journal.add((b"more", 6, 1))
    calls = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: calls.append(os.fstat(descriptor).st_ino))
    assert len(Journal(journal.path)) == 6
    assert calls == [journal.path.stat().st_ino]


def test_cutting(journal):
    """Either end, durable at once; more than there is cuts nothing."""
    journal.cut_tail(9)
    journal.cut_head(0)
    assert len(journal) == 5
    journal.cut_tail(4)
    journal.cut_head(2)
    assert again(journal).part(0) == entries(2, 3)


def test_cutting_the_tail_forgets_it_for_ever(journal):
    """A shorter entry written over a cut one does not bring the rest of it back."""
    journal.cut_tail(1)
    journal.add((b"", 2, 2))
    found = again(journal)
    assert found.part(0) == [*entries(1), (b"", 2, 2)]
    found.cut_tail(0)
    assert again(found).part(0) == []


def test_a_crash_while_the_head_is_cut_leaves_one_of_both(journal, monkeypatch):
    """The replacing file is not named before it is whole."""

    def crash(_path, pieces):
        list(pieces)
        raise OSError("no")

    monkeypatch.setattr(journal_module, "atomic_write", crash)
    with pytest.raises(OSError, match="no"):
        journal.cut_head(3)
    assert again(journal).part(0) == entries(5)


def test_sync_is_asked_for_once(journal, monkeypatch):
    """Nothing new, nothing to wait for; what was added is one wait, however much."""
    calls = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    journal.sync()
    for entry in entries(3, 6):
        journal.add(entry)
    journal.sync()
    journal.sync()
    assert len(calls) == 1
