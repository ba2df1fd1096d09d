"""Log files that lost their end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

from broker.store.errors import CorruptLog
from broker.store.short_files import fill_short_files
from tests.sim.stores import StoreBench, bodies, message


def files(folder: Path, *sizes: int) -> list[Path]:
    base, made = 0, []
    for size in sizes:
        made.append(folder / f"{base:020d}")
        made[-1].write_bytes(b"x" * size)
        base += 4096
    return made


def test_files_get_their_size_back(tmp_path: Path) -> None:
    """A middle one up to the next one, the last one its configured size; zeros fill them."""
    first, second, third = files(tmp_path, 4000, 4096, 0)
    fill_short_files(tmp_path, 4096, 3999, structlog.get_logger())
    assert [path.stat().st_size for path in (first, second, third)] == [4096] * 3
    assert first.read_bytes() == b"x" * 4000 + bytes(96)


@pytest.mark.parametrize(("sizes", "durable"), [((4000, 4096), 4001), ((4096, 100), 4197), ((4000, 4096), 9000)])
def test_missing_durable_bytes_are_reported(tmp_path: Path, sizes, durable: int) -> None:
    """Nothing is changed then."""
    made = files(tmp_path, *sizes)
    with pytest.raises(CorruptLog, match="cut off"):
        fill_short_files(tmp_path, 4096, durable, structlog.get_logger())
    assert tuple(path.stat().st_size for path in made) == sizes


def test_no_directory_and_longer_files(tmp_path: Path) -> None:
    """A fresh store has no files; larger ones of a former configuration stay as they are."""
    fill_short_files(tmp_path / "log", 4096, 0, structlog.get_logger())
    (only,) = files(tmp_path, 9000)
    fill_short_files(tmp_path, 4096, 0, structlog.get_logger())
    assert only.stat().st_size == 9000


def test_store_goes_on_in_a_file_that_was_cut(tmp_path: Path) -> None:
    """Cut behind the last record: everything is there, and appends go on."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.open_queue(b"q")
    bench.store.append([message([queue], b"1")])
    bench.settle()
    end = bench.store.end_position
    bench.close()
    os.truncate(tmp_path / "data" / "log" / "0".zfill(20), end + 3)
    bench.open()
    for _ in range(300):
        bench.store.append([message([queue], bytes(40))])
    bench.settle()
    assert len(bodies(bench.store, queue)) == 301
    bench.close()
