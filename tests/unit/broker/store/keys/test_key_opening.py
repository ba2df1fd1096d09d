"""Starts of every kind: what the runs do not have comes from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sim.keyed import found, keyed_message
from tests.sim.stores import StoreBench


def filled(directory: Path, count: int = 300) -> StoreBench:
    """A closed store with keys in several runs over several log files."""
    bench = StoreBench(directory, key_index_entries=64, index_merge_runs=30)
    queue = bench.store.queues.open(b"q")
    for n in range(count):
        bench.store.append(keyed_message([queue], b"%d" % n, keys=b"all k%d" % n))
    bench.settle()
    bench.close()
    return bench


def everything(bench: StoreBench) -> list[int]:
    """The messages with the key all, by their numbers."""
    return [int(body) for body in found(bench.store, b"all", count_max=1000)]


@pytest.mark.parametrize("what", ["gone", "manifest", "run", "short", "ahead", "older"])
def test_an_unreadable_index_is_made_from_the_log(tmp_path: Path, what: str) -> None:
    """Nothing there, a damaged MANIFEST, a damaged or missing run, one of another log, one that is behind."""
    bench = filled(tmp_path / "data")
    keys = tmp_path / "data" / "keys"
    runs = sorted(keys.glob("run-*"))
    assert len(runs) > 2
    if what == "gone":
        shutil.rmtree(keys)
    elif what == "manifest":
        (keys / "MANIFEST").write_bytes(b"{}\n00000000\n")
    elif what == "run":
        runs[1].write_bytes(b"\0" + runs[1].read_bytes()[1:])
    elif what == "short":
        runs[0].unlink()
    else:
        other = filled(tmp_path / "other", 900 if what == "ahead" else 20)
        shutil.rmtree(keys)
        shutil.copytree(other.directory / "keys", keys)
    bench.open()
    assert everything(bench) == list(range(299, -1, -1))
    assert found(bench.store, b"k17") == [b"17"]
    bench.reopen()
    assert everything(bench) == list(range(299, -1, -1))
    bench.close()


def test_damage_in_the_log_costs_the_keys_behind_it_in_its_file_only(tmp_path: Path) -> None:
    """A rebuild goes on with the next log file."""
    bench = filled(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "keys")
    log = sorted((tmp_path / "data" / "log").iterdir())
    data = bytearray(log[0].read_bytes())
    data[5000] ^= 1
    log[0].write_bytes(data)
    bench.open()
    left = everything(bench)
    assert 0 < len(left) < 300
    assert left[:50] == list(range(299, 249, -1))
    assert left[-1] == 0
    bench.close()
