"""Snapshots of the state tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.state.name_table import VALUE
from broker.store.state.state_snapshot import NAME, load_snapshot, restore, save_snapshot, snapshot_size
from broker.store.state.state_tables import StateTables

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
    assert save_snapshot(tmp_path, 5, tables.freeze()) == snapshot_size(tmp_path) == (tmp_path / NAME).stat().st_size
    path = tmp_path / NAME
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
