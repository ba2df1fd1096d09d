from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.servers.preflight import DirectoryUnusable, prepare


def test_a_directory_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b", "--data")
    prepare(tmp_path / "a" / "b", "--data")
    assert not list((tmp_path / "a" / "b").iterdir())


def test_what_is_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match=r"file cannot be used .* choose another with --data"):
        prepare(tmp_path / "file", "--data")
    with pytest.raises(DirectoryUnusable):
        prepare(tmp_path / "file" / "below", "--data")
