"""Segments that appear, grow and go under the eyes of another process."""

from __future__ import annotations

from pathlib import Path

from broker.store.attached import log_view
from broker.store.attached.log_view import LogView
from broker.store.log.segment import segment_path

SIZE = 4096


def make(directory: Path, base: int, fill: bytes, size: int = SIZE) -> None:
    segment_path(directory, base).write_bytes(fill * size)


def mapped(directory: Path) -> list[int]:
    """Bases of the segments that are mapped; what other tests have open, and let go meanwhile, does not count."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({int(Path(line.split()[-1]).name) for line in maps if str(directory) in line})


def test_positions_find_their_segment_as_it_appears_and_goes(tmp_path: Path) -> None:
    view = LogView(tmp_path)
    assert (view.begin(), view.segment_at(0)) == (0, None)
    make(tmp_path, 0, b"a")
    first = view.segment_at(SIZE - 1)
    assert first is not None
    assert first.view[0:1] == b"a"
    assert view.segment_at(SIZE) is None
    make(tmp_path, SIZE, b"b")
    second = view.segment_at(SIZE)
    assert second is not None
    assert (second.base, second.end, second.view[0:1]) == (SIZE, 2 * SIZE, b"b")
    segment_path(tmp_path, 0).unlink()
    assert view.segment_at(0) is first, "a mapping stays valid"
    view.let_go()
    assert view.segment_at(0) is None
    assert first.view[0:1] == b"a"
    assert view.begin() == SIZE


def test_the_newest_segment_may_grow(tmp_path: Path) -> None:
    view = LogView(tmp_path)
    make(tmp_path, 0, b"a")
    assert view.segment_at(SIZE) is None
    with segment_path(tmp_path, 0).open("ab") as file:
        file.write(b"b" * SIZE)
    grown = view.segment_at(SIZE)
    assert grown is not None
    assert (grown.size, grown.view[SIZE : SIZE + 1]) == (2 * SIZE, b"b")


def test_a_file_without_a_byte_is_not_there_yet(tmp_path: Path) -> None:
    segment_path(tmp_path, 0).touch()
    assert LogView(tmp_path).segment_at(0) is None
    assert LogView(tmp_path / "none").segment_at(0) is None


def test_the_number_of_mappings_has_a_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(log_view, "SEGMENTS_MAX", 2)
    view = LogView(tmp_path)
    for base in range(0, 4 * SIZE, SIZE):
        make(tmp_path, base, b"x")
    for base in range(0, 4 * SIZE, SIZE):
        assert view.segment_at(base) is not None
    assert mapped(tmp_path) == [2 * SIZE, 3 * SIZE]
    assert view.segment_at(0) is not None, "what was given up is mapped again"
