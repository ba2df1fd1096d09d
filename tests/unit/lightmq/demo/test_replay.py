"""Recorded series: each line is a reading or a named error."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.demo.feed import BadSeries, read_series


def test_times_and_values(tmp_path: Path) -> None:
    """Times without a zone are UTC."""
    path = tmp_path / "series.csv"
    path.write_text("timestamp,value\n2013-12-02 21:15:00,73.9\n2013-12-02T21:20:00+01:00,74\n")
    assert list(read_series(path)) == [(1386018900000, 73.9), (1386015600000, 74.0)]


@pytest.mark.parametrize("line", ["yesterday,1", "2013-12-02 21:15:00,warm", "2013-12-02 21:15:00"])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    """The message has the file and the line's number."""
    path = tmp_path / "series.csv"
    path.write_text(f"timestamp,value\n2013-12-02 21:15:00,1\n{line}\n")
    with pytest.raises(BadSeries, match=r"series.csv, line 3"):
        list(read_series(path))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    """A file without a header is no series."""
    path = tmp_path / "series.csv"
    path.write_text("")
    with pytest.raises(BadSeries, match="first line"):
        list(read_series(path))
