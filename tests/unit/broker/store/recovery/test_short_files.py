"""Log files that lost their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.store.errors import CorruptLog
from broker.store.recovery.log_end import durable_cuts, find_short_files
from tests.sim.stores import StoreBench, bodies, message


def files(folder: Path, *sizes: int) -> list[Path]:
    base, made = 0, []
    for size in sizes:
        made.append(folder / f"{base:020d}")
        made[-1].write_bytes(b"x" * size)
        base += 4096
    return made


def test_what_files_should_have(tmp_path: Path) -> None:
    """A middle one up to the next one, the last one its configured size; nothing is changed."""
    files(tmp_path, 4000, 4096, 0)
    found = find_short_files(tmp_path, 4096, 4096, 3999)
    assert [(file.base, file.size, file.full_size, file.cut) for file in found] == [
        (0, 4000, 4096, 4000), (8192, 0, 4096, 8192),
    ]  # fmt: skip
    assert not durable_cuts(found, 3999)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [4000, 4096, 0]


@pytest.mark.parametrize(
    ("sizes", "durable", "cut"), [((4000, 4096), 4001, 0), ((4096, 100), 4197, 4096), ((4000, 4096), 9000, 0)]
)
def test_missing_durable_bytes(tmp_path: Path, sizes, durable: int, cut: int) -> None:
    """They are known from those that a torn tail may lack."""
    files(tmp_path, *sizes)
    assert [file.base for file in durable_cuts(find_short_files(tmp_path, 4096, 4096, durable), durable)][:1] == [cut]


def test_no_directory_and_longer_files(tmp_path: Path) -> None:
    """A fresh store has no files; larger ones of a former configuration stay as they are."""
    assert not find_short_files(tmp_path / "log", 4096, 4096, 0)
    files(tmp_path, 9000)
    assert not find_short_files(tmp_path, 4096, 4096, 0)


def test_the_last_file_is_as_large_as_the_log_made_it(tmp_path: Path) -> None:
    """A small file of a small log is whole; one that is shorter than it was made is not."""
    files(tmp_path, 4096, 4096)
    assert not find_short_files(tmp_path, 4096, 1 << 20, 8192)
    files(tmp_path, 4096, 4096, 4096)
    assert [file.full_size for file in find_short_files(tmp_path, 4096, 1 << 20, 8192)] == [8192]


def test_store_goes_on_in_a_file_that_was_cut(tmp_path: Path) -> None:
    """Cut behind the last record: everything is there, and appends go on."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(message([queue], b"1"))
    bench.settle()
    end = bench.store.end_position
    bench.close()
    os.truncate(tmp_path / "data" / "log" / "0".zfill(20), end + 3)
    bench.open()
    for _ in range(300):
        bench.store.append(message([queue], bytes(40)))
    bench.settle()
    assert len(bodies(bench.store, queue)) == 301
    bench.close()


def test_a_refused_start_leaves_the_newest_file_as_it_is(tmp_path: Path) -> None:
    """A larger size of files is no reason to touch a damaged log."""
    bench = StoreBench(tmp_path / "data", segment_size_bytes=4096)
    queue = bench.store.queues.open(b"q")
    for _ in range(100):
        bench.store.append(message([queue], bytes(100)))
    bench.settle()
    bench.close()
    path = max((tmp_path / "data" / "log").glob("0*"))
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    (tmp_path / "data" / "CHECKPOINT").unlink()
    (tmp_path / "data" / "state" / "SNAPSHOT").unlink()
    with pytest.raises(CorruptLog):
        StoreBench(tmp_path / "data", segment_size_bytes=64 * 1024, damage_policy="refuse")
    assert path.stat().st_size == 4096
