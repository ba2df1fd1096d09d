"""Epoch lists: which entry replaces which, and where two logs diverge; by examples and random histories."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.epochs import EPOCH_MAX, Epochs, Extent, checked, truncation_point
from remoting.protocol.errors import LocalMisuse, RemoteViolation


def log(*entries: tuple[int, int], end: int, begin: int = 0) -> Extent:
    return Extent(begin, end, Epochs(entries))


def test_example_1_an_unreplicated_tail_is_cut():
    """The old master had 100..130 alone; the new one began at 100."""
    assert truncation_point(log((1, 0), end=130), log((1, 0), (2, 100), end=160)) == 100


def test_example_2_a_replica_ahead_within_an_epoch_is_cut_to_where_the_master_left_it():
    """The master's copy of epoch 3 ended at 240."""
    assert truncation_point(log((3, 200), end=250), log((3, 200), (4, 240), end=300)) == 240


def test_example_3_an_epoch_the_master_never_saw_is_cut_away():
    """Epoch 5 is unknown to the master; the lists meet in epoch 4, which the master has up to 280."""
    assert truncation_point(log((4, 240), (5, 300), end=340), log((4, 240), (6, 280), end=400)) == 280


def test_example_4_an_epoch_with_another_start_is_not_the_same_epoch():
    """Only a reused epoch can look like that, so it is not trusted."""
    assert truncation_point(log((6, 400), (7, 500), end=520), log((6, 400), (7, 480), end=600)) == 480


def test_example_5_an_empty_epoch_gives_way_so_that_its_bytes_are_not_mistaken():
    """A broker elected before it had a byte of the old epoch does not write its own bytes under the old number."""
    mine = Epochs([(1, 0)])
    mine.add(2, 0)
    assert list(mine) == [(2, 0)]
    assert truncation_point(log((1, 0), end=4), Extent(0, 2, mine)) is None


def test_example_6_nothing_in_common_means_to_begin_anew():
    """No epoch in common, or the common stretch ends before the master's log begins: a reset, no endless retry."""
    assert truncation_point(log((1, 0), end=50), log((2, 0), end=50)) is None
    assert truncation_point(log((1, 0), end=50), log((1, 0), end=500, begin=100)) is None
    assert truncation_point(log((1, 0), end=100), log((1, 0), end=500, begin=100)) == 100
    assert truncation_point(log(end=100, begin=100), log((1, 0), end=500, begin=100)) == 100
    assert truncation_point(log(end=0), log((1, 0), end=500)) == 0
    assert truncation_point(log((1, 0), (2, 80), end=90, begin=85), log((1, 0), (3, 80), end=90)) is None


def test_a_log_that_began_inside_an_epoch_need_not_know_where_that_started():
    """After a reset, or when its list was rebuilt from the remaining records."""
    assert truncation_point(log((4, 300), end=350, begin=300), log((4, 240), end=400, begin=280)) == 350
    assert truncation_point(log((4, 240), end=350, begin=200), log((4, 310), end=400, begin=310)) == 350
    assert truncation_point(log((4, 301), end=350, begin=300), log((4, 240), end=400, begin=280)) is None


def test_a_new_entry_replaces_all_that_start_there_or_later():
    """Whatever began there never wrote a byte that still counts."""
    epochs = Epochs([(1, 0), (2, 10), (4, 20)])
    epochs.add(5, 10)
    assert list(epochs) == [(1, 0), (5, 10)]
    assert (epochs.last, epochs.last_start, len(epochs)) == (5, 10, 2)


@pytest.mark.parametrize(("epoch", "start"), [(2, 30), (1, 30), (EPOCH_MAX + 1, 30), (3, -1)])
def test_an_old_epoch_and_an_impossible_one_are_misuse(epoch, start):
    """An epoch is never reused."""
    with pytest.raises(LocalMisuse):
        Epochs([(1, 0), (2, 10)]).add(epoch, start)


def test_truncation():
    """What starts at the cut or later is removed."""
    epochs = Epochs([(1, 0), (2, 10), (4, 20)])
    epochs.truncate(21)
    assert len(epochs) == 3
    epochs.truncate(20)
    assert list(epochs) == [(1, 0), (2, 10)]
    epochs.truncate(11)
    assert len(epochs) == 2
    epochs.truncate(10)
    assert list(epochs) == [(1, 0)]
    epochs.clear()
    assert (list(epochs), epochs.last, epochs.last_start) == ([], 0, 0)


def test_looking_up():
    """A byte belongs to the last epoch that began at or before it."""
    epochs = Epochs([(1, 5), (2, 10)])
    assert [epochs.at(position) for position in (4, 5, 9, 10, 99)] == [None, (1, 5), (1, 5), (2, 10), (2, 10)]
    assert [epochs.end_of(epoch, 30) for epoch in (0, 1, 2, 3)] == [None, 10, 30, None]
    assert repr(epochs) == "Epochs([(1, 5), (2, 10)])"
    assert epochs == Epochs([(1, 5), (2, 10)])
    assert epochs != Epochs([(1, 5)])


def test_a_list_from_the_wire_is_checked():
    """Entries out of order, or above the end, come from a peer that is broken."""
    assert list(checked([(1, 0), (2, 5)], 5)) == [(1, 0), (2, 5)]
    for entries in ([(1, 0), (2, 0)], [(2, 0), (1, 5)], [(1, 0), (2, 6)]):
        with pytest.raises(RemoteViolation):
            checked(entries, 5)


class Log:
    """A log of single bytes with its epoch list; every byte records its writer."""

    def __init__(self) -> None:
        self.cells: list[tuple[int, int]] = []
        self.epochs = Epochs()

    def extent(self) -> Extent:
        return Extent(0, len(self.cells), self.epochs)

    def follow(self, master: Log, cells_max: int) -> None:
        cut = truncation_point(self.extent(), master.extent())
        if cut is None:
            self.cells.clear()
            self.epochs.clear()
        else:
            del self.cells[cut:]
            self.epochs.truncate(cut)
        assert self.cells == master.cells[: len(self.cells)], "kept bytes of another master"
        end = min(len(master.cells), len(self.cells) + cells_max)
        for position in range(len(self.cells), end):
            entry = master.epochs.at(position)
            assert entry is not None
            if entry[0] != self.epochs.last:
                self.epochs.add(*entry)
            self.cells.append(master.cells[position])


@given(st.integers(0, 2**32))
def test_random_histories_never_diverge_silently(seed):
    """Any elections, interrupted catching up, lost tails: a follower has its master's bytes and no others."""
    chance = random.Random(seed)
    logs = [Log() for _ in range(3)]
    for epoch in range(1, 12):
        master = chance.choice(logs)
        master.epochs.add(epoch, len(master.cells))
        master.cells += [(epoch, number) for number in range(chance.randrange(4))]
        for replica in chance.sample(logs, chance.randrange(3)):
            if replica is not master:
                replica.follow(master, chance.randrange(5))
        torn = chance.choice(logs)
        del torn.cells[max(0, len(torn.cells) - chance.randrange(3)) :]
        torn.epochs.truncate(len(torn.cells) + 1)
