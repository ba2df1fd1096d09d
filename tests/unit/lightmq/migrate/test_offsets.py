"""Offsets of both sides follow each other: nothing that was not consumed is skipped, and the sides come to agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.migration.offset_map import BothWays, CopiedRun, OffsetMap
from lightmq.migrate.offsets import Follow, Pair, follow, settled

COPIED = BothWays(OffsetMap([CopiedRun(100, 0, 10, 10), CopiedRun(110, 15, 10, 10)]))
"""Source 100 to 119; five messages of another producer lie at 10 to 14 of the target."""


def test_the_side_that_has_not_moved_follows() -> None:
    assert follow(Pair(105, None), None, COPIED) == Follow(at_source=False, offset=5, result=Pair(105, 5))
    assert follow(Pair(109, 5), Pair(105, 5), COPIED) == Follow(at_source=False, offset=9, result=Pair(109, 9))
    assert follow(Pair(105, 17), Pair(105, 5), COPIED) == Follow(at_source=True, offset=112, result=Pair(112, 17))
    assert follow(Pair(103, 5), Pair(105, 5), COPIED) == Follow(at_source=False, offset=3, result=Pair(103, 3))
    assert follow(Pair(105, 2), Pair(105, 5), COPIED) == Follow(at_source=True, offset=102, result=Pair(102, 2))


def test_of_two_that_have_moved_the_further_one_counts() -> None:
    assert follow(Pair(108, 16), Pair(105, 5), COPIED) == Follow(at_source=True, offset=111, result=Pair(111, 16))
    assert follow(Pair(108, 6), Pair(105, 5), COPIED) == Follow(at_source=False, offset=8, result=Pair(108, 8))


def test_messages_of_other_producers_are_not_skipped() -> None:
    assert follow(Pair(118, 5), Pair(105, 5), COPIED) == Follow(at_source=False, offset=10, result=Pair(118, 10))
    assert follow(Pair(118, 12), Pair(105, 12), COPIED) is None
    assert follow(Pair(118, 15), Pair(105, 15), COPIED) == Follow(at_source=False, offset=23, result=Pair(118, 23))


def test_what_agrees_or_is_nowhere_is_left_alone() -> None:
    assert follow(Pair(105, 5), None, COPIED) is None
    assert follow(Pair(105, 5), Pair(105, 5), COPIED) is None
    assert follow(Pair(None, None), None, COPIED) is None
    assert follow(Pair(None, 3), None, BothWays()) is None
    assert follow(Pair(50, None), None, BothWays()) == Follow(at_source=False, offset=0, result=Pair(0, 0))


def test_what_is_not_copied_yet_follows_when_it_is() -> None:
    step = follow(Pair(125, 15), Pair(110, 15), COPIED)
    assert step == Follow(at_source=False, offset=25, result=Pair(120, 25))
    assert follow(Pair(125, 25), step.result, COPIED) is None
    more = BothWays(OffsetMap([*COPIED.forth.runs, CopiedRun(120, 25, 9, 9)]))
    assert follow(Pair(125, 25), step.result, more) == Follow(at_source=False, offset=30, result=Pair(125, 30))
    assert settled(Pair(125, 25), COPIED) == Pair(120, 25)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12))
def test_nothing_is_skipped_that_neither_side_has_consumed(moves: list[tuple[bool, int]]) -> None:
    """Groups only move on here: what lies below the offset of a side was consumed at one of the two."""
    now = last = Pair(100, 0)
    consumed: set[int] = set()  # messages by their target offset, copied ones and others
    for at_source, offset in moves:
        source, target = now.source or 0, now.target or 0
        if at_source:
            source = max(source, min(100 + offset, 120))
            consumed.update(one for one in (*range(10), *range(15, 25)) if one < COPIED.to_target(source))
        else:
            target = max(target, min(offset, 25))
            consumed.update(range(target))
        step = follow(Pair(source, target), last, COPIED)
        now = last = Pair(source, target) if step is None else step.result
        assert all(one in consumed or one >= (now.target or 0) for one in range(25))
        assert follow(now, last, COPIED) is None
