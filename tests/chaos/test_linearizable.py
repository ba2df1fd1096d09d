"""The register checker refuses what no order explains, accepts what one does, and agrees with trying every order."""

from __future__ import annotations

from itertools import chain, combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos import linearizable
from tests.chaos.linearizable import UNKNOWN, Operation, Undecided, first_impossible


def write(called: float, answered: float, value: str) -> Operation:
    return Operation("w", called, answered, value, is_write=True)


def read(called: float, answered: float, value: str | None) -> Operation:
    return Operation("r", called, answered, value, is_write=False)


def test_operations_in_sequence() -> None:
    """What was written last is read."""
    assert first_impossible([read(0, 1, None), write(2, 3, "a"), read(4, 5, "a"), write(6, 7, "b")]) is None


def test_a_stale_read_is_found() -> None:
    """The old value after the new one was answered, or after it was seen."""
    stale = read(6, 7, "a")
    assert first_impossible([write(0, 1, "a"), write(2, 3, "b"), stale]) == stale
    assert first_impossible([write(0, 1, "a"), write(2, 9, "b"), read(3, 4, "b"), stale]) == stale


def test_a_lost_write_is_found() -> None:
    """An answered write has no effect."""
    lost = read(4, 5, None)
    assert first_impossible([write(0, 1, "a"), lost]) == lost


def test_a_value_from_nowhere_is_found() -> None:
    """It was not written, or its write had not been called yet."""
    assert first_impossible([read(0, 1, "a")]) == read(0, 1, "a")
    assert first_impossible([read(0, 1, "a"), write(2, 3, "a")]) == read(0, 1, "a")


def test_overlapping_operations_may_take_effect_in_either_order() -> None:
    """Two writes at once: either may be the last, but not first the one, then the other, and the one again."""
    both = [write(0, 9, "a"), write(0, 9, "b")]
    assert first_impossible([*both, read(10, 11, "a")]) is None
    assert first_impossible([*both, read(10, 11, "b")]) is None
    assert first_impossible([*both, read(1, 2, "a"), read(3, 4, "b"), read(5, 6, "a")]) is not None


def test_a_write_of_unknown_outcome_may_come_late_or_never_but_once() -> None:
    """Its value may appear at any time after its call, but not again after another write was read."""
    lost = write(0, UNKNOWN, "a")
    assert first_impossible([lost, write(1, 2, "b"), read(3, 4, "b")]) is None
    assert first_impossible([lost, write(1, 2, "b"), read(3, 4, "b"), read(5, 6, "a")]) is None
    again = read(7, 8, "a")
    assert first_impossible([lost, write(1, 2, "b"), read(2.5, 3, "a"), read(5, 6, "b"), again]) is not None


def test_many_unknown_writes_stay_cheap() -> None:
    """A long history with a lost answer now and then needs few states: lost writes that were read are settled."""
    history = []
    for turn in range(2_000):
        at = 10.0 * turn
        history += [write(at, UNKNOWN if turn % 3 else at + 1, f"v{turn}"), read(at + 4, at + 5, f"v{turn}")]
    assert first_impossible(history) is None
    history.append(read(1e6, 1e6 + 1, "v1998"))
    assert first_impossible(history) == history[-1]


def test_an_undecidable_history_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than accepted."""
    monkeypatch.setattr(linearizable, "STATES_MAX", 50)
    crowd = [write(0, UNKNOWN, f"v{number}") for number in range(10)]
    with pytest.raises(Undecided):
        first_impossible([*crowd, *(read(50, 60, f"v{number}") for number in range(10))])


def explained(history: list[Operation]) -> bool:
    """Try every order of every choice of the unanswered writes."""
    sure = [each for each in history if each.answered != UNKNOWN]
    maybe = [each for each in history if each.answered == UNKNOWN and each.is_write]
    chosen = chain.from_iterable(combinations(maybe, count) for count in range(len(maybe) + 1))
    return any(is_right(order) for some in chosen for order in permutations([*sure, *some]))


def is_right(order: tuple[Operation, ...]) -> bool:
    """Whether this order respects the known times, and every read finds the last write."""
    value: str | None = None
    for place, each in enumerate(order):
        if any(later.answered < each.called for later in order[place + 1 :]):
            return False
        if each.is_write:
            value = each.value
        elif each.value != value:
            return False
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Few operations with few values and many overlaps."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        called = draw(st.integers(0, 8))
        is_write = draw(st.booleans())
        value = draw(st.sampled_from(["a", "b", "c"] if is_write else ["a", "b", "c", None]))
        is_unknown = draw(st.integers(0, 3)) == 0
        answered = UNKNOWN if is_unknown else float(called + draw(st.integers(0, 5)))
        found.append(Operation(f"c{number}", float(called), answered, value, is_write))
    return found


@settings(max_examples=600, deadline=None)
@given(histories())
def test_it_agrees_with_trying_every_order(history: list[Operation]) -> None:
    """In both directions."""
    assert (first_impossible(history) is None) == explained(history)
