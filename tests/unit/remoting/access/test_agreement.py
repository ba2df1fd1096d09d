"""The agreed table: which changes it takes, and what they make of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.access.agreement import AgreedTable, UserChange, UserState, Version, differences, with_states
from remoting.access.users import User, UserTable, entry_of

RULE = entry_of("Topic:orders", ["Pub"], [], "Allow")
ANN = UserState(name="ann", user=User(secret="x"), entries=(RULE,))


def change(made_for: Version, *states: UserState, origin: str = "first") -> UserChange:
    return UserChange(made_for=made_for, origin=origin, states=states)


def test_a_change_is_taken_once_and_for_its_version_only():
    first = change(Version(), ANN)
    table = AgreedTable().after(first)
    assert (table.version, table.users, table.entries) == (Version("first", 1), {"ann": ANN.user}, {"ann": (RULE,)})
    assert not table.takes(first)
    assert not table.takes(change(Version("first", 0), ANN))
    assert not table.takes(change(Version("first", 1), ANN, origin="second"))
    assert not table.takes(change(Version("second", 1), ANN, origin="second"))
    assert table.takes(change(Version("first", 1), ANN))


def test_a_deleted_user_takes_its_rules_along():
    table = AgreedTable().after(change(Version(), ANN)).after(change(Version("first", 1), UserState(name="ann")))
    assert (table.version.revision, table.users, table.entries) == (2, {}, {})


def test_a_table_that_is_handed_over_begins_above_the_one_it_comes_from():
    table = AgreedTable().after(change(Version("lost", 7), ANN, origin="second"))
    assert table.version == Version("second", 8)


def test_no_text_shows_a_secret():
    assert "'x'" not in repr(change(Version(), ANN))


NAMES = st.sampled_from(["ann", "bob", "cat"])
USERS = st.builds(User, secret=st.sampled_from(["x", "y"]), enabled=st.booleans())


@st.composite
def tables(draw: st.DrawFn) -> UserTable:
    users = draw(st.dictionaries(NAMES, USERS))
    entries = {name: (RULE,) for name in users if draw(st.booleans())}
    return UserTable(users, entries)


@given(before=tables(), after=tables())
def test_differences_make_one_table_the_other(before: UserTable, after: UserTable) -> None:
    states = differences(before, after)
    assert with_states(before, states) == after
    assert (not states) == (before == after)
