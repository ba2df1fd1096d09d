"""State tables: last change wins, subscribers hear, copies stand still."""

from __future__ import annotations

from broker.store.state import state_tables
from broker.store.state.name_table import VALUE
from broker.store.state.state_kinds import QUEUE
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables


def test_set_replace_delete() -> None:
    """The position is that of the record that said the value."""
    tables, heard = StateTables(), []
    tables.subscribe(4, lambda *change: heard.append(change))
    tables.apply(StateChange(4, b"k", b"1"), 10)
    tables.apply(StateChange(4, b"k", b"2"), 20)
    frozen = tables.freeze().others
    tables.apply(StateChange(4, b"k", None), 30)
    tables.apply(StateChange(4, b"never", None), 40)
    assert heard == [(b"k", b"1", 10), (b"k", b"2", 20), (b"k", None, 30), (b"never", None, 40)]
    assert tables.get(4, b"k") is None
    assert {kind: [shard for shard in shards if shard] for kind, shards in frozen.items()} == {4: [{b"k": (b"2", 20)}]}
    assert (tables.count(4), tables.count(9), list(tables.items(9)), tables.get(9, b"x")) == (0, 0, [], None)


def test_older_than_in_small_lists(monkeypatch) -> None:
    """Entries said below a position, over all kinds; queues by their ids; what is said meanwhile does not come."""
    tables = StateTables()
    for kind, key, position in ((4, b"c", 30), (7, b"a", 10), (4, b"b", 20)):
        tables.apply(StateChange(kind, key, b"v"), position)
    for name, queue, position in ((b"", 9, 12), (b"q", 2, 15), (b"p", 1, 14), (b"r", 3, 40)):
        tables.apply(StateChange(QUEUE, name, VALUE.pack(queue, 0)), position)
    monkeypatch.setattr(state_tables, "LOOK_ENTRIES", 1)
    found = []
    for part in tables.older_than(30):
        found += part
        tables.apply(StateChange(7, b"a", b"again"), 50)
        tables.apply(StateChange(8, b"new", b"v"), 60)
    assert sorted(found) == [(QUEUE, b"", VALUE.pack(9, 0), 12), (4, b"b", b"v", 20)]
    assert [queue for part in tables.queues.older_than(30) for queue in part] == [1, 2]


def test_queues_look_like_any_kind() -> None:
    """By key, by kind and for subscribers."""
    tables, heard = StateTables(), []
    tables.subscribe(QUEUE, lambda *change: heard.append(change))
    tables.apply(StateChange(QUEUE, b"q", VALUE.pack(0, 7)), 10)
    assert tables.get(QUEUE, b"q") == (VALUE.pack(0, 7), 10)
    assert (list(tables.items(QUEUE)), tables.count(QUEUE)) == ([(b"q", (VALUE.pack(0, 7), 10))], 1)
    tables.apply(StateChange(QUEUE, b"q", None), 20)
    assert (tables.get(QUEUE, b"q"), tables.count(QUEUE), len(heard)) == (None, 0, 2)
