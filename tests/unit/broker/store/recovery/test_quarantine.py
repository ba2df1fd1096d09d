"""Ranges: joined, found by position, kept over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import CorruptIndex
from broker.store.recovery import quarantine
from broker.store.recovery.quarantine import NAME, DamagedRange, Quarantine, load_quarantine, save_quarantine


def spans(ranges: Quarantine) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in ranges]


def test_found_by_position() -> None:
    """The end is exclusive."""
    ranges = Quarantine([DamagedRange(100, 200, "x"), DamagedRange(300, 308, "y")])
    assert [ranges.at(position) is not None for position in (99, 100, 199, 200, 300, 308)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    assert (len(ranges), ranges.size_bytes) == (2, 108)


@pytest.mark.parametrize(
    ("new", "expected", "news"),
    [
        ((100, 150), [(100, 200), (300, 400)], False),
        ((150, 250), [(100, 250), (300, 400)], True),
        ((200, 300), [(100, 400)], True),
        ((50, 500), [(50, 500)], True),
        ((210, 220), [(100, 200), (210, 220), (300, 400)], True),
        ((8, 100), [(8, 200), (300, 400)], True),
    ],
)
def test_neighbours_are_joined(new: tuple[int, int], expected: list[tuple[int, int]], news: bool) -> None:
    """What touches becomes one range, which is not settled any more."""
    ranges = Quarantine([DamagedRange(100, 200, "x", settled=True), DamagedRange(300, 400, "y", settled=True)])
    assert ranges.add(DamagedRange(*new, "z")) == news
    assert spans(ranges) == expected
    assert all(each.settled for each in ranges) != news


def test_settled_and_expired(tmp_path: Path) -> None:
    """Both survive in the file."""
    ranges = Quarantine([DamagedRange(100, 200, "x"), DamagedRange(300, 400, "y")])
    ranges.settle()
    assert ranges.drop_before(200)
    assert not ranges.drop_before(399)
    save_quarantine(tmp_path, ranges)
    assert list(load_quarantine(tmp_path)) == [DamagedRange(300, 400, "y", settled=True)]
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0


def test_no_file_and_an_unreadable_one(tmp_path: Path) -> None:
    """None is none; an unreadable one is told."""
    assert not len(load_quarantine(tmp_path))
    save_quarantine(tmp_path, [DamagedRange(1, 2, "x")])
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:-3] + b"00\n")
    with pytest.raises(CorruptIndex, match="checksum"):
        load_quarantine(tmp_path)


def test_more_ranges_than_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two oldest become one."""
    monkeypatch.setattr(quarantine, "RANGES_MAX", 2)
    ranges = Quarantine(DamagedRange(at, at + 8, "x") for at in (0, 100, 200))
    assert spans(ranges) == [(0, 108), (200, 208)]
