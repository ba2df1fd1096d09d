"""FORMAT names the oldest release that may open a directory; older ones refuse it and change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.format_file import WrongFormat, check_format


def check(directory: Path, records: int = 3, *, is_used: bool = False) -> None:
    check_format(directory, "lightmq-store", 2, records, is_used=is_used)


def test_fresh_directory_is_marked(tmp_path: Path) -> None:
    """First start writes, later ones compare."""
    check(tmp_path)
    check(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == "lightmq-store 2 records 3\n"


def test_a_log_without_format_is_foreign(tmp_path: Path) -> None:
    """A directory with another program's log is left alone."""
    with pytest.raises(WrongFormat, match="not a data directory"):
        check(tmp_path, is_used=True)
    assert not (tmp_path / "FORMAT").exists()


@pytest.mark.parametrize("text", ["lightmq-store 7", "lightmq-store 7 records 3", "other 2 records 1", "", "rubbish"])
def test_another_layout_says_what_to_do(tmp_path: Path, text: str) -> None:
    """Both versions are in the message."""
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(WrongFormat, match=r"this program reads and writes 'lightmq-store 2 records 3'"):
        check(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == text


@pytest.mark.parametrize("text", ["lightmq-store 2\n", "lightmq-store 2 records 1\n"])
def test_a_newer_program_raises_the_number(tmp_path: Path, text: str) -> None:
    """From its first start on: it may write what older ones do not know at any time. Before, there was no number."""
    (tmp_path / "FORMAT").write_text(text)
    check(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == "lightmq-store 2 records 3\n"


def test_an_older_program_refuses_and_changes_nothing(tmp_path: Path) -> None:
    """A record that it passes over may be the one that takes a message back."""
    check(tmp_path, 4)
    with pytest.raises(WrongFormat, match=r"a newer release has opened this directory.*records up to 3"):
        check(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == "lightmq-store 2 records 4\n"
