"""Both charts are written and are not empty."""

from __future__ import annotations

from pathlib import Path

from lightmq.demo.accounting import LedgerRow
from lightmq.demo.charts import chosen_sensors, series, write_html, write_png

ROWS = [
    LedgerRow(f"d-{index}", f"s{index % 2}", float(index), 0, index, 1_700_000_000_000 + index * 1000)
    for index in range(40)
]
COMMANDS = [{"id": "c", "sensor": "s1", "value": 39.0, "time_ms": 1_700_000_039_000}]


def test_png_and_html(tmp_path: Path) -> None:
    """A picture by its signature, a page that carries its own script."""
    write_png(tmp_path / "a.png", ROWS, COMMANDS)
    write_html(tmp_path / "a.html", ROWS, COMMANDS)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text()
    assert "s1: command" in page
    assert 'src="http' not in page


def test_nothing_to_draw_is_no_failure(tmp_path: Path) -> None:
    """A run that was ended at once still ends with its files."""
    write_png(tmp_path / "a.png", [], [])
    write_html(tmp_path / "a.html", [], [])


def test_sensors_with_commands_come_first() -> None:
    """The picture shows what happened."""
    assert chosen_sensors(sorted(series(ROWS)), COMMANDS) == ["s1", "s0"]
