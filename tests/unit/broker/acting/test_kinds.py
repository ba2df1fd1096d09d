"""What is kept of two values under one key: the same, whatever came first and however often it came."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.acting.journal import decode_lines, encode_line
from broker.acting.kinds import GIVEN, KINDS, LOCKS, OFFSETS, POPS, EntryKind

NAMES, NUMBERS = st.text(max_size=4), st.integers(0, 9)
OUTCOMES = st.tuples(NUMBERS, NAMES, st.sampled_from("CR"))
VALUES = {
    "offset": (st.tuples(NAMES, NAMES, NUMBERS), st.tuples(NUMBERS)),
    "transaction": (st.tuples(NUMBERS), OUTCOMES),
    "escape": (st.tuples(NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS)),
    "pop": (st.tuples(NAMES, NAMES, NUMBERS, NUMBERS), st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS)),
    "given": (
        st.tuples(NAMES, NAMES, NUMBERS, NUMBERS),
        st.tuples(NUMBERS, st.integers(1, 9), NUMBERS, st.none() | NAMES),
    ),
    "lock": (
        st.tuples(NAMES, NAMES, NUMBERS),
        st.builds(lambda token, kept: (token, f"c{token}" * kept), NUMBERS, st.booleans()),
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_an_item_is_read_as_it_was_written(kind: EntryKind) -> None:
    @given(*VALUES[kind.name])
    def check(key: tuple, value: tuple) -> None:
        (item,) = msgspec.json.decode(kind.encode({key: value}), type=list[kind.item])
        assert kind.split(item) == (key, value)

    check()


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_repetition_changes_nothing(kind: EntryKind) -> None:
    """A line that is there twice, or again behind later ones, counts as once."""
    key, value = VALUES[kind.name]

    @given(key, st.lists(value, min_size=1, max_size=5), st.data())
    def check(key: tuple, values: list[tuple], data: st.DataObject) -> None:
        again = values + data.draw(st.lists(st.sampled_from(values), max_size=5))
        lines = [encode_line(kind, key, each) for each in values]
        repeated = [encode_line(kind, key, each) for each in again]
        assert decode_lines(b"".join(repeated)) == decode_lines(b"".join(lines))

    check()


@pytest.mark.parametrize("kind", [OFFSETS, LOCKS, POPS, GIVEN], ids=lambda kind: kind.name)
def test_the_order_does_not_count(kind: EntryKind) -> None:
    @given(st.lists(st.tuples(*VALUES[kind.name]), max_size=8), st.randoms())
    def check(entries: list[tuple], random) -> None:
        lines = [encode_line(kind, *each) for each in entries]
        shuffled = list(lines)
        random.shuffle(shuffled)
        assert decode_lines(b"".join(shuffled)) == decode_lines(b"".join(lines))

    check()


def test_a_lock_that_was_given_up_stays_free() -> None:
    assert LOCKS.keep((7, ""), (7, "a")) == LOCKS.keep((7, "a"), (7, "")) == (7, "")
    assert LOCKS.keep((7, ""), (8, "b")) == (8, "b")


def test_a_message_that_is_done_stays_done_until_the_log_has_it_anew() -> None:
    assert POPS.keep((5, 9, 0, 0), (5, 9, 7, 9)) == POPS.keep((5, 9, 7, 9), (5, 9, 0, 0)) == (5, 9, 0, 0)
    assert POPS.keep((5, 9, 8, 1), (5, 9, 7, 9)) == (5, 9, 8, 1)
    assert POPS.keep((5, 9, 0, 0), (6, 9, 8, 9)) == (6, 9, 8, 9)
