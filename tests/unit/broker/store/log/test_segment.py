"""Segments: full size from birth, whole writes, zeroing, views that outlive the file."""

from __future__ import annotations

import os
from pathlib import Path

from broker.store.log.segment import Segment, allocate, list_segments, segment_path


def make(tmp_path: Path, base: int = 4096, size: int = 65536, zeroed: bool = False) -> Segment:
    path = segment_path(tmp_path, base)
    allocate(path, size, zeroed=zeroed)
    return Segment(path)


def test_file_is_private_and_full_size(tmp_path: Path) -> None:
    """0600, the asked size, all zeros, whether written out or reserved."""
    for zeroed in (False, True):
        segment = make(tmp_path, zeroed=zeroed)
        assert segment.path.stat().st_mode & 0o777 == 0o600
        assert (segment.size, segment.end) == (65536, 4096 + 65536)
        assert bytes(segment.view) == bytes(65536)
        segment.drop()


def test_write_shows_in_the_view(tmp_path: Path) -> None:
    """What pwrite put there is what the read-only map shows."""
    segment = make(tmp_path)
    segment.write(4100, b"hello")
    segment.sync()
    segment.release_pages()
    assert bytes(segment.view[4:9]) == b"hello"
    segment.close()
    segment.close()


def test_zero_finds_and_removes_what_is_there(tmp_path: Path) -> None:
    """Zeroing says whether there was anything, and leaves what is before it."""
    segment = make(tmp_path)
    segment.write(4096, b"keep")
    segment.write(50_000, b"torn")
    assert segment.zero(4100, segment.end)
    assert not segment.zero(4100, segment.end)
    assert bytes(segment.view[:4]) == b"keep"
    segment.close()


def test_views_survive_the_drop(tmp_path: Path) -> None:
    """A reader's view stays readable after retention has deleted the file."""
    segment = make(tmp_path)
    segment.write(4096, b"still here")
    view = segment.view[:10]
    segment.drop()
    assert bytes(view) == b"still here"
    assert list_segments(tmp_path) == []


def test_list_is_in_order_and_ignores_strangers(tmp_path: Path) -> None:
    """Only 20-digit names are segments."""
    for name in ("0" * 19 + "9", "0" * 18 + "10", "notes.txt", ".next"):
        (tmp_path / name).write_bytes(b"")
    assert [int(path.name) for path in list_segments(tmp_path)] == [9, 10]


def test_a_cut_file_gets_its_size_back_with_its_space_reserved(tmp_path: Path) -> None:
    """A hole would be space that is not there: to read it through the map ends the process on a full tmpfs."""
    path = segment_path(tmp_path, 0)
    allocate(path, 256 * 1024, zeroed=True)
    os.truncate(path, 10_000)
    segment = Segment(path)
    segment.lengthen(256 * 1024)
    assert segment.size == 256 * 1024
    assert bytes(segment.view[-8:]) == bytes(8)
    assert path.stat().st_blocks * 512 >= 256 * 1024
    segment.close()


def test_zeros_that_nobody_wants_any_more_are_not_written(tmp_path: Path) -> None:
    """A log that is about to be closed does not wait for its next file."""
    asked = iter([True, True, False])
    allocate(tmp_path / "next", 1 << 20, zeroed=True, wanted=lambda: next(asked))
    assert next(asked, None) is None
    (tmp_path / "next").unlink()
