"""Chunks and runs together hold each key once, whatever was sealed, installed or merged."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.keys.key_index import (
    ENTRY_BYTES,
    MANIFEST_NAME,
    Columns,
    KeyIndex,
    KeyManifest,
    KeyRun,
    key_run_path,
    load_key_manifest,
    save_key_manifest,
    sort_keys,
    write_key_run,
)
from broker.store.log.metadata import sealed_json
from remoting.native.vectors import arange, column, full
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hash
from tests.sim.keyed import back_to_back, found, keyed_message
from tests.sim.stores import StoreBench, drain

NUMBER = key_hash(b"t", b"k")


def filled(directory: Path, count: int) -> tuple[KeyIndex, list[int]]:
    """An index with `count` records with the key k, three a chunk."""
    index = KeyIndex(directory, KEYS_PER_RECORD_MAX + 2, 0)
    data, positions = back_to_back([{"keys": b"k", "store_ms": 1000 * n} for n in range(count)])
    index.take(data, 0, 0, len(data))
    index.end_position = len(data)
    return index, positions


def positions_in(index: KeyIndex, low: int = 0, high: int = 1 << 40) -> list[int]:
    """Positions under the number of k, the newest first."""
    return [at for positions, _ in index.find(NUMBER, low, high) for at in reversed(positions.tolist())]


def test_newest_first_between_two_positions(tmp_path: Path) -> None:
    """From several chunks; the end is exclusive."""
    index, positions = filled(tmp_path, 8)
    assert index.full_chunks == 2
    assert index.entry_count == 8
    assert positions_in(index) == positions[::-1]
    assert positions_in(index, positions[2], positions[5]) == positions[4:1:-1]
    assert list(index.find(NUMBER + 1, 0, 1 << 40)) == []


def test_sealed_chunks_stay_readable_until_their_run_is_installed(tmp_path: Path) -> None:
    """What is added meanwhile goes to a new chunk and stays; nothing is there twice."""
    index, positions = filled(tmp_path, 4)
    sealed = index.seal()
    assert (sealed.first, sealed.end) == (0, index.end_position)
    later, more = back_to_back([{"keys": b"k"}], base=index.end_position)
    index.take(later, index.end_position, index.end_position, index.end_position + len(later))
    assert positions_in(index) == [*more, *positions[::-1]]
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (sealed.first, sealed.end), sort_keys([chunk.columns() for chunk in sealed.chunks]))
    manifest = KeyManifest(2, sealed.end, (1,))
    save_key_manifest(tmp_path, manifest)
    index.install(manifest, KeyRun(path), sealed)
    assert positions_in(index) == [*more, *positions[::-1]]
    assert (index.entry_count, len(index.runs)) == (1, 1)
    again = KeyIndex(tmp_path, 200, 0)
    assert positions_in(again) == positions[::-1]
    assert again.end_position == sealed.end


def test_files_not_in_the_manifest_are_deleted(tmp_path: Path) -> None:
    """What a crash left is deleted at the start; a named file that is missing is reported."""
    write_key_run(key_run_path(tmp_path, 7), 7, 0, (0, 8), sort_keys([KeyIndex(tmp_path, 64, 0)._chunks[0].columns()]))
    (tmp_path / ".MANIFEST.1.tmp").write_bytes(b"x")
    KeyIndex(tmp_path, 64, 0)
    assert list(tmp_path.iterdir()) == []
    save_key_manifest(tmp_path, KeyManifest(2, 8, (1,)))
    with pytest.raises(CorruptIndex, match="cannot be opened"):
        KeyIndex(tmp_path, 64, 0)


def test_runs_outside_the_positions_are_not_read(tmp_path: Path) -> None:
    """A lookup between two positions costs nothing in older and newer runs."""
    index, _ = filled(tmp_path, 1)
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (0, 96), sort_keys([index.seal().chunks[0].columns()]))
    fresh = KeyIndex(tmp_path / "other", 64, 0)
    fresh.runs.append(KeyRun(path))
    assert list(fresh.find(NUMBER, 96, 1 << 40)) == []
    assert len(list(fresh.find(NUMBER, 0, 1))) == 1


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """None before the first one."""
    assert load_key_manifest(tmp_path) is None
    manifest = KeyManifest(next_file_id=9, end_position=4096, runs=(3, 8))
    save_key_manifest(tmp_path, manifest)
    assert load_key_manifest(tmp_path) == manifest


@pytest.mark.parametrize("content", [b"{}\nbad\n", sealed_json({"runs": [1]}), sealed_json({"runs": 5})])
def test_an_unreadable_one_is_reported(tmp_path: Path, content: bytes) -> None:
    """A wrong checksum, a missing member, a member of another kind."""
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(CorruptIndex):
        load_key_manifest(tmp_path)


def columns(hashes: list[int], first: int = 0) -> Columns:
    """Entries of these numbers, at rising positions, each a second later."""
    at = arange(first, first + len(hashes))
    return column(hashes, "I"), at * 8, full(len(hashes), 96, "I"), at.astype("I")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.sampled_from([0, 1, 7, 2**31, 2**32 - 1]), max_size=20), min_size=1, max_size=3))
def test_every_number_finds_its_entries_in_log_order(tmp_path_factory: pytest.TempPathFactory, parts) -> None:
    """Whatever pieces the run was sorted from."""
    directory = tmp_path_factory.mktemp("keys")
    pieces, flat = [], []
    for part in parts:
        pieces.append(columns(part, len(flat)))
        flat += part
    write_key_run(key_run_path(directory, 3), 3, 2, (0, 8 * len(flat)), sort_keys(pieces))
    run = KeyRun(key_run_path(directory, 3))
    assert (run.file_id, run.level, run.entry_count) == (3, 2, len(flat))
    assert (run.first_position, run.end_position) == (0, 8 * len(flat))
    assert run.path.stat().st_size == 64 + ENTRY_BYTES * len(flat)
    for number in (0, 1, 2, 7, 2**31, 2**32 - 1):
        meant = [at for at, value in enumerate(flat) if value == number]
        positions, seconds = run.find(number)
        assert positions.tolist() == [8 * at for at in meant]
        assert seconds.tolist() == meant
    assert [column.tolist() for column in sort_keys([run.columns()])] == [c.tolist() for c in run.columns()]


def test_damage_is_noticed(tmp_path: Path) -> None:
    """The header at the opening, the columns by verify and before they are merged."""
    path = key_run_path(tmp_path, 1)
    write_key_run(path, 1, 0, (0, 800), columns([5, 6, 7]))
    good = path.read_bytes()
    for at, text in ((0, "no run"), (9, "header"), (24, "no run"), (34, "header"), (49, "header")):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CorruptIndex, match=text):
            KeyRun(path)
    for short in (good[:40], good[:-1]):
        path.write_bytes(short)
        with pytest.raises(CorruptIndex):
            KeyRun(path)
    path.write_bytes(good[:-1] + b"\xff")
    run = KeyRun(path)
    for check in (run.verify, run.columns):
        with pytest.raises(CorruptIndex, match="columns"):
            check()


def test_a_full_disk_while_writing_a_run_loses_nothing(tmp_path: Path) -> None:
    """Appends are refused until there is room; then the run is written."""
    bench = StoreBench(tmp_path / "data", key_index_entries=128)
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("keys.write", OSError(errno.ENOSPC, "full"))
    for n in range(20):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"a b c d k%d" % n))
    drain(bench.store)
    assert bench.store.disk.full
    assert bench.store.metrics()["key_index_runs"] == 0
    bench.store.maintain(0)
    assert not bench.store.disk.full
    bench.store.append(keyed_message([queue], b"20", keys=b"a"))
    bench.settle()
    bench.store.maintain(0)
    drain(bench.store)
    assert bench.store.metrics()["key_index_runs"] >= 1
    assert len(found(bench.store, b"a")) == 21
    bench.reopen()
    assert len(found(bench.store, b"a")) == 21
    bench.close()


def test_a_failure_before_the_manifest_leaves_an_unnamed_file(tmp_path: Path) -> None:
    """The next start takes the keys from the log again; nothing is there twice."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    bench.faults.arm("keys.manifest", ValueError("killed here"))
    for n in range(60):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"a k%d" % n))
    bench.settle()
    drain(bench.store)
    bench.reopen()
    assert found(bench.store, b"a", count_max=100) == [b"%d" % n for n in range(59, -1, -1)]
    assert found(bench.store, b"k3") == [b"3"]
    bench.close()


def test_the_manifest_names_what_exists_and_ids_rise(tmp_path: Path) -> None:
    """Through runs, merges and restarts."""
    bench, seen = StoreBench(tmp_path / "data", key_index_entries=64), 0
    queue, keys = bench.store.queues.open(b"q"), tmp_path / "data" / "keys"
    for n in range(1000):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"k%d" % n))
        if n % 100 == 99:
            bench.settle()
            drain(bench.store)
            manifest = load_key_manifest(keys)
            assert manifest is not None
            assert manifest.next_file_id > max(manifest.runs)
            assert manifest.next_file_id >= seen
            assert {path.name for path in keys.glob("run-*")} == {f"run-{number:010d}" for number in manifest.runs}
            assert manifest.end_position <= bench.store.positions.flushed
            seen = manifest.next_file_id
        if n % 250 == 249:
            bench.settle()
            bench.reopen()
    assert bench.store.metrics()["key_index_runs"] < 12
    bench.close()


def test_a_run_covers_exactly_its_range(tmp_path: Path) -> None:
    """Also when one append fills it many times over; otherwise a start would add keys twice."""
    bench = StoreBench(tmp_path / "data", key_index_entries=64)
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[keyed_message([queue], b"%d" % n, keys=b"k%d" % n) for n in range(500)])
    bench.settle()
    drain(bench.store)
    assert bench.store.keys is not None
    runs = bench.store.keys._index.runs
    assert sum(run.entry_count for run in runs) == 500
    for run in runs:
        assert run.first_position <= run.positions.min()
        assert run.positions.max() < run.end_position
    bench.close()
