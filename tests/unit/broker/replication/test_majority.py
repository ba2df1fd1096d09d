"""What a majority of disks confirms, and what it does not."""

from __future__ import annotations

import pytest

from broker.replication.majority import Majority
from broker.replication.promises import DurabilityRule, promise

THREE = frozenset({1, 2, 3})


def confirmed(own: int, others: list[int], *, start: int = 10, confirm: int = 0, leads: bool = True) -> int:
    """The confirm position of a group of three."""
    return Majority(THREE, lambda: leads).confirmed(own, others, start, confirm)


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [(100, [70], 70), (100, [70, 90], 90), (60, [70, 90], 70), (100, [-1, 90], 90), (100, [], 0), (100, [-1, -1], 0)],
)
def test_the_second_highest_of_three_counts(own: int, others: list[int], expected: int) -> None:
    assert confirmed(own, others) == expected


def test_nothing_is_confirmed_by_counting_before_a_byte_of_the_epoch_is_on_a_majority() -> None:
    """Raft, figure 8: what an earlier epoch wrote may be on a majority and still be cut off."""
    assert confirmed(120, [80, 80], start=80, confirm=40) == 40
    assert confirmed(120, [88, 80], start=80, confirm=40) == 88


def test_it_never_falls_and_stands_still_once_the_master_leads_no_more() -> None:
    assert confirmed(100, [70, 60], confirm=90) == 90
    assert confirmed(100, [100, 100], confirm=50, leads=False) == 50


def test_five_need_three() -> None:
    five = Majority(frozenset(range(1, 6)), lambda: True)
    assert (five.size, five.confirmed(100, [90, 50, 40, -1], 0, 0)) == (3, 50)


@pytest.mark.parametrize(
    ("brokers", "text", "warning"),
    [
        (2, "on disk at 2 of 2 brokers", "a majority of two is both"),
        (3, "on disk at 2 of 3 brokers; one may die and messages are still accepted", ""),
        (4, "on disk at 3 of 4 brokers", "no more brokers than 3 do"),
        (5, "on disk at 3 of 5 brokers; 2 may die", ""),
    ],
)
def test_the_promise_in_a_sentence(brokers: int, text: str, warning: str) -> None:
    found = promise(DurabilityRule(flush="sync", in_group=True, count=brokers, elects_itself=True))
    assert text in found.text
    assert warning in found.warning
    assert bool(warning) == bool(found.warning)
