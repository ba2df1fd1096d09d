"""The look of all pictures: a page with title and footer is saved as PNG, of the size that was wanted."""

from __future__ import annotations

from pathlib import Path

from lightmq.demo.picture import DOTS_PER_INCH, Picture, callout


def test_a_page_has_the_size_that_was_wanted(tmp_path: Path) -> None:
    page = Picture("What happened", "and where it was seen", width=6, height=3)
    axes = page.axes(page.grid()[0, 0], "a panel", x="s", y="MB/s")
    axes.plot([0, 1], [0, 1])
    callout(axes, "here", (1, 1), (-10, 0))
    page.save(tmp_path / "a.png", "from nowhere")
    raw = (tmp_path / "a.png").read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert [int.from_bytes(raw[at : at + 4], "big") for at in (16, 20)] == [6 * DOTS_PER_INCH, 3 * DOTS_PER_INCH]
