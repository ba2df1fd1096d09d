"""Chunks and runs together hold each key once, whatever was sealed, installed or merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.keys.key_index import KeyIndex
from broker.store.keys.key_manifest import KeyManifest, save_key_manifest
from broker.store.keys.key_run import KeyRun, key_run_path, sort_keys, write_key_run
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hash
from tests.sim.keyed import back_to_back

NUMBER = key_hash(b"t", b"k")


def filled(directory: Path, count: int) -> tuple[KeyIndex, list[int]]:
    """An index that has taken in `count` records with the key k, three a chunk."""
    index = KeyIndex(directory, KEYS_PER_RECORD_MAX + 2, 0)
    data, positions = back_to_back([{"keys": b"k", "store_ms": 1000 * n} for n in range(count)])
    index.take(data, 0, 0, len(data))
    index.end_position = len(data)
    return index, positions


def found(index: KeyIndex, low: int = 0, high: int = 1 << 40) -> list[int]:
    """Positions under the number of k, the newest first."""
    return [at for positions, _ in index.find(NUMBER, low, high) for at in reversed(positions.tolist())]


def test_newest_first_between_two_positions(tmp_path: Path) -> None:
    """From several chunks; the end is not included."""
    index, positions = filled(tmp_path, 8)
    assert index.full_chunks == 2
    assert index.entry_count == 8
    assert found(index) == positions[::-1]
    assert found(index, positions[2], positions[5]) == positions[4:1:-1]
    assert list(index.find(NUMBER + 1, 0, 1 << 40)) == []


def test_sealed_chunks_stay_readable_until_their_run_is_installed(tmp_path: Path) -> None:
    """What is taken in meanwhile goes to a new chunk and stays; nothing is there twice."""
    index, positions = filled(tmp_path, 4)
    sealed = index.seal()
    assert (sealed.first, sealed.end) == (0, index.end_position)
    later, more = back_to_back([{"keys": b"k"}], base=index.end_position)
    index.take(later, index.end_position, index.end_position, index.end_position + len(later))
    assert found(index) == [*more, *positions[::-1]]
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (sealed.first, sealed.end), sort_keys([chunk.columns() for chunk in sealed.chunks]))
    manifest = KeyManifest(2, sealed.end, (1,))
    save_key_manifest(tmp_path, manifest)
    index.install(manifest, KeyRun(path), sealed)
    assert found(index) == [*more, *positions[::-1]]
    assert (index.entry_count, len(index.runs)) == (1, 1)
    again = KeyIndex(tmp_path, 200, 0)
    assert found(again) == positions[::-1]
    assert again.end_position == sealed.end


def test_files_the_manifest_does_not_name_go(tmp_path: Path) -> None:
    """What a crash left behind is deleted at the start; a named file that is missing is told."""
    write_key_run(key_run_path(tmp_path, 7), 7, 0, (0, 8), sort_keys([KeyIndex(tmp_path, 64, 0)._chunks[0].columns()]))
    (tmp_path / ".MANIFEST.1.tmp").write_bytes(b"x")
    KeyIndex(tmp_path, 64, 0)
    assert list(tmp_path.iterdir()) == []
    save_key_manifest(tmp_path, KeyManifest(2, 8, (1,)))
    with pytest.raises(CorruptIndex, match="cannot be opened"):
        KeyIndex(tmp_path, 64, 0)


def test_runs_outside_the_positions_are_not_looked_at(tmp_path: Path) -> None:
    """A look-up between two positions costs nothing in older and newer runs."""
    index, _ = filled(tmp_path, 1)
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (0, 96), sort_keys([index.seal().chunks[0].columns()]))
    fresh = KeyIndex(tmp_path / "other", 64, 0)
    fresh.runs.append(KeyRun(path))
    assert list(fresh.find(NUMBER, 96, 1 << 40)) == []
    assert len(list(fresh.find(NUMBER, 0, 1))) == 1
