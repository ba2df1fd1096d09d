"""The state tables, their snapshot, names of queues and groups of queues."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.state import state_tables
from broker.store.state.name_table import VALUE
from broker.store.state.state_kinds import QUEUE, RETENTION, StateChange
from broker.store.state.state_tables import (
    SHARDS,
    SNAPSHOT,
    GroupRule,
    OwnedTable,
    QueueGroups,
    QueueRegistry,
    SharedTable,
    StateTables,
    carried_value,
    expiry_change,
    load_snapshot,
    queue_value,
    restore,
    save_snapshot,
    snapshot_size,
)


def test_set_replace_delete() -> None:
    """The position is that of the record with the value."""
    tables, heard = StateTables(), []
    tables.subscribe(4, lambda *change: heard.append(change))
    tables.apply(StateChange(4, b"k", b"1"), 10)
    tables.apply(StateChange(4, b"k", b"2"), 20)
    frozen = tables.freeze().others
    tables.apply(StateChange(4, b"k", None), 30)
    tables.apply(StateChange(4, b"never", None), 40)
    assert heard == [(b"k", b"1", 10), (b"k", b"2", 20), (b"k", None, 30), (b"never", None, 40)]
    assert tables.get(4, b"k") is None
    assert {kind: (table.count, list(table.items())) for kind, table in frozen.items()} == {
        4: (1, [(b"k", (b"2", 20))])
    }
    assert (tables.count(4), tables.count(9), list(tables.items(9)), tables.get(9, b"x")) == (0, 0, [], None)


def test_older_than_in_small_lists(monkeypatch) -> None:
    """Entries written below a position, over all kinds; queues by their ids; what is written meanwhile is left out."""
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


KEYS = st.integers(0, 40).map(lambda number: b"%d\x00key-%d" % (number % 3, number))
STEPS = st.lists(st.one_of(st.tuples(KEYS, st.integers()), KEYS, st.none()), max_size=120)


@pytest.mark.parametrize("kind", [SharedTable, OwnedTable])
@given(steps=STEPS, small=st.integers(1, 10))
def test_against_a_dict(kind, steps, small) -> None:
    """Set, delete and freeze in any order: the table is a dict, and each frozen copy the dict of that time."""
    table, meant, copies = kind(), {}, []
    with growing_at(small):
        for step in steps:
            if step is None:
                copies.append((table.freeze(), dict(meant)))
            elif isinstance(step, tuple):
                table.put(step[0], (b"v", step[1]))
                meant[step[0]] = (b"v", step[1])
            else:
                table.discard(step)
                meant.pop(step, None)
            assert (dict(table.items()), table.count) == (meant, len(meant))
    keys = [b"%d\x00key-%d" % (number % 3, number) for number in range(41)]
    assert all(table.get(key) == meant.get(key) for key in keys)
    assert {key: entry for _looked, entries in table.older(10) for key, entry in entries} == {
        key: entry for key, entry in meant.items() if entry[1] < 10
    }
    for frozen, then in copies:
        assert (dict(frozen.items()), frozen.count) == (then, len(then))
    if kind is OwnedTable:
        owned = {owner: dict(table.of(owner)) for owner in table.owners()}
        assert {key: entry for of in owned.values() for key, entry in of.items()} == meant
        assert all(key.startswith(owner + b"\x00") for owner, of in owned.items() for key in of)
        assert all(owned.values()), "an owner without keys is forgotten"
        assert dict(table.of(b"nobody")) == {}


@contextmanager
def growing_at(entries: int):
    """An owner with more keys than this gets a large table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_tables, "OWNER_ENTRIES_SMALL", entries)
        yield


def test_a_growing_owner_copies_one_small_dict_at_a_change() -> None:
    table = OwnedTable()
    for number in range(20 * SHARDS):
        table.put(b"g\x00%d" % number, (b"", number))
    frozen = table.freeze().shards
    assert len(frozen) == SHARDS
    table.put(b"g\x007", (b"new", 1))
    table.put(b"other\x007", (b"new", 1))
    assert sum(now is not then for now, then in zip(table.freeze().shards, frozen, strict=False)) == 1
    assert len(table.freeze().shards) == SHARDS + 1


def test_a_change_copies_one_small_dict() -> None:
    """The other ones stay shared, however many keys there are."""
    table = SharedTable()
    for number in range(20 * SHARDS):
        table.put(b"%d" % number, (b"", number))
    frozen = table.freeze().shards
    table.put(b"7", (b"new", 1))
    table.discard(b"7")
    table.discard(b"nobody")
    assert sum(now is not then for now, then in zip(table.freeze().shards, frozen, strict=True)) == 1


def make():
    tables, seen = StateTables(), []
    registry = QueueRegistry(tables)
    registry.on_queue = lambda *queue: seen.append(queue)
    return tables, registry, seen


def test_create_find_delete() -> None:
    """Ids count up; a deleted one leaves a hole for ever."""
    tables, registry, seen = make()
    for change in registry.creation([b"a", b"b"]):
        tables.apply(change, 1)
    assert (registry.find(b"b"), registry.name(0), registry.count, registry.next_id) == (1, b"a", 2, 2)
    for change in registry.deletion([registry.name(1)]):
        tables.apply(change, 2)
    assert (registry.find(b"b"), registry.name(1), registry.count, registry.next_id) == (None, None, 1, 2)
    assert registry.creation([b"b"])[0].value == queue_value(2, 0)
    assert seen == [(0, 0), (1, 0)]
    assert registry.name(77) is None


def test_floor_of_ids_survives_a_rebuild() -> None:
    """After the deleted queue's own record has expired the empty name still keeps its id from being reused."""
    tables, registry, _ = make()
    for change in registry.creation([b"a"]):
        tables.apply(change, 1)
    changes = registry.deletion([registry.name(0)])
    fresh, again, _ = make()
    fresh.apply(changes[1], 5)
    assert again.next_id == 1


def test_a_carried_value_has_the_present_next_offset() -> None:
    """What retention writes again lets an empty queue continue where it stopped."""
    assert carried_value(b"q", queue_value(3, 0), lambda queue: 100 + queue) == queue_value(3, 103)
    assert carried_value(b"", queue_value(9, 0), lambda queue: 0) == queue_value(9, 0)


def test_queues_and_positions() -> None:
    """A queue begins where its group does; the position never moves back; other queues have no group."""
    heard: list[int] = []
    groups = QueueGroups(StateTables(), lambda: heard.append(1))
    groups.define(b"plant", GroupRule((3, 4), age_ms=1000))
    groups.join(b"plant", [3, 4, 700])
    assert [groups.begin_of(queue) for queue in (0, 3, 700, 5000)] == [0, 0, 0, 0]
    assert not heard
    groups.move(b"plant", 80)
    groups.move(b"plant", 40)
    groups.join(b"plant", [4])
    assert (len(heard), groups.names()) == (3, [b"plant"])
    assert [groups.begin_of(queue) for queue in (0, 3, 700, 701, 5000)] == [0, 80, 80, 0, 0]
    groups.join(b"other", [700])
    assert (groups.begin_of(700), groups.begin(b"plant"), groups.begin(b"nobody")) == (0, 80, 0)


def test_what_was_hidden_stays_hidden_until_the_log_begins_there() -> None:
    """Also without a rule and after a restart; then the record about it goes, once."""
    tables = StateTables()
    tables.apply(expiry_change(b"plant", 80), 5)
    groups = QueueGroups(tables, list)
    groups.join(b"plant", [1])
    assert groups.begin_of(1) == 80
    groups.define(b"plant", GroupRule((1,), age_ms=5))
    assert groups.outlived(80) == []
    groups.forget(b"plant")
    groups.forget(b"nobody")
    assert groups.outlived(79) == []
    assert [(change.kind, change.key, change.value) for change in groups.outlived(80)] == [(RETENTION, b"plant", None)]
    assert groups.outlived(90) == []


TABLES = st.dictionaries(
    st.integers(2, 10),
    st.dictionaries(st.binary(max_size=20), st.tuples(st.binary(max_size=50), st.integers(0, 2**60)), min_size=1),
    max_size=4,
)
QUEUES = st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 300), st.integers(0, 2**60)), max_size=20)


@given(TABLES, QUEUES, st.integers(0, 2**60))
def test_round_trip(others, queues, position: int) -> None:
    """Restoring gives the same tables."""
    tables = StateTables()
    for kind, table in others.items():
        for key, entry in table.items():
            tables.load(kind, key, entry)
    for name, queue, said in queues:
        tables.load(1, name, (VALUE.pack(queue, said // 2), said))
    with tempfile.TemporaryDirectory() as folder:
        save_snapshot(Path(folder), position, tables.freeze())
        snapshot = load_snapshot(Path(folder))
        assert snapshot is not None
        assert snapshot.position == position
        restored = StateTables()
        restore(snapshot, restored)
    assert {kind: dict(restored.items(kind)) for kind in range(2, 11) if restored.count(kind)} == others
    assert {key: entry for key, entry in restored.items(1) if key or entry[0] != VALUE.pack(0, 0)} == {
        key: entry for key, entry in tables.items(1) if key or entry[0] != VALUE.pack(0, 0)
    }
    assert all(restored.queues.find(name) == tables.queues.find(name) for name, _, _ in queues if name)


def test_missing_and_damaged(tmp_path: Path) -> None:
    """No file is None; a flipped bit is an error that names the file."""
    assert load_snapshot(tmp_path) is None
    tables = StateTables()
    tables.load(4, b"k", (b"v", 1))
    assert snapshot_size(tmp_path) == 0
    size = save_snapshot(tmp_path, 5, tables.freeze())
    assert size == snapshot_size(tmp_path) == (tmp_path / SNAPSHOT).stat().st_size
    path = tmp_path / SNAPSHOT
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndex, match="SNAPSHOT"):
        load_snapshot(tmp_path)


def test_large_tables_are_written_in_pieces(tmp_path: Path) -> None:
    """The file is the same whatever its size."""
    tables = StateTables()
    for n in range(3000):
        tables.load(4, b"%d" % n, (bytes(300), n))
    save_snapshot(tmp_path, 5, tables.freeze())
    restored = StateTables()
    restore(load_snapshot(tmp_path), restored)
    assert restored.copy() == tables.copy()
