from __future__ import annotations

from pathlib import Path

from tools.configuration_reference import PAGE, main


def test_the_page_in_the_repository_is_current() -> None:
    assert main(["--check"]) == 0, f"{PAGE} is out of date; run: python -m tools.configuration_reference"


def test_a_page_is_written_and_recognised(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "configuration.md"
    assert main(["--check"], page) == 1
    assert main([], page) == 0
    assert main(["--check"], page) == 0
    assert "## `[broker.store]`" in page.read_text()
    page.write_text("old")
    assert main(["--check"], page) == 1
