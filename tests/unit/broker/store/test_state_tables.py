"""State tables: last change wins, subscribers hear, copies stand still."""

from __future__ import annotations

from broker.store.state_log import StateChange
from broker.store.state_tables import StateTables


def test_set_replace_delete() -> None:
    """The position is that of the record that said the value."""
    tables, heard = StateTables(), []
    tables.subscribe(4, lambda *change: heard.append(change))
    tables.apply(StateChange(4, b"k", b"1"), 10)
    tables.apply(StateChange(4, b"k", b"2"), 20)
    copy = tables.copy()
    tables.apply(StateChange(4, b"k", None), 30)
    tables.apply(StateChange(4, b"never", None), 40)
    assert heard == [(b"k", b"1", 10), (b"k", b"2", 20), (b"k", None, 30), (b"never", None, 40)]
    assert tables.get(4, b"k") is None
    assert copy == {4: {b"k": (b"2", 20)}}
    assert (tables.count(4), tables.count(9), list(tables.items(9)), tables.get(9, b"x")) == (0, 0, [], None)


def test_older_than_is_in_order() -> None:
    """Entries said below a position, oldest first, over all kinds."""
    tables = StateTables()
    for kind, key, position in ((4, b"c", 30), (1, b"a", 10), (4, b"b", 20)):
        tables.apply(StateChange(kind, key, b"v"), position)
    assert tables.older_than(30) == [(1, b"a", b"v", 10), (4, b"b", b"v", 20)]
