"""Snapshots of the state tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.state_snapshot import NAME, load_snapshot, restore, save_snapshot
from broker.store.state_tables import StateTables

TABLES = st.dictionaries(
    st.integers(1, 10),
    st.dictionaries(st.binary(max_size=20), st.tuples(st.binary(max_size=50), st.integers(0, 2**60)), min_size=1),
    max_size=4,
)


@given(TABLES, st.integers(0, 2**60))
def test_round_trip(tables, position: int) -> None:
    """Restoring gives the same tables."""
    with tempfile.TemporaryDirectory() as folder:
        save_snapshot(Path(folder), position, tables)
        snapshot = load_snapshot(Path(folder))
        assert snapshot is not None
        assert snapshot.position == position
        restored = StateTables()
        restore(snapshot, restored)
        assert restored.copy() == tables


def test_missing_and_damaged(tmp_path: Path) -> None:
    """No file is None; a flipped bit is an error that names the file."""
    assert load_snapshot(tmp_path) is None
    save_snapshot(tmp_path, 5, {4: {b"k": (b"v", 1)}})
    path = tmp_path / NAME
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndex, match="SNAPSHOT"):
        load_snapshot(tmp_path)
