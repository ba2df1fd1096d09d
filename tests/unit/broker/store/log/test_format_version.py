"""The FORMAT file."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.errors import WrongFormat
from broker.store.log.format_version import check_format


def test_fresh_directory_is_marked(tmp_path: Path) -> None:
    """First start writes, later ones compare."""
    check_format(tmp_path)
    check_format(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == "lightmq-store 2\n"


def test_log_without_format_is_not_ours(tmp_path: Path) -> None:
    """A directory of somebody else's log is left alone."""
    (tmp_path / "log").mkdir()
    with pytest.raises(WrongFormat, match="not a data directory"):
        check_format(tmp_path)


def test_other_version_says_what_to_do(tmp_path: Path) -> None:
    """Both versions are in the message."""
    (tmp_path / "FORMAT").write_text("lightmq-store 7")
    with pytest.raises(WrongFormat, match=r"'lightmq-store 7'.*'lightmq-store 2'"):
        check_format(tmp_path)
