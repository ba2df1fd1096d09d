"""Texts of a picture that are cut, leave the canvas or cover each other.

drawn(monkeypatch)   the pages that are saved from now on: their texts, and what of them cannot be read
faults(figure)       sentences; empty when all texts can be read
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from lightmq.demo.picture import Picture

SLACK = 1.5
"""Dots that two boxes may share: boxes are a little larger than what is inked."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it was saved."""

    texts: list[str]
    faults: list[str]


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Page]:
    """Look at pages as they are saved; they are written too, as ever."""
    found: list[Page] = []
    write = Picture._write

    def keep(page: Picture, path: Path) -> None:
        wrong = faults(page.figure)
        found.append(Page([text.get_text().strip() for text, _ in texts(page.figure)], wrong))
        write(page, path)

    monkeypatch.setattr(Picture, "_write", keep)
    return found


def faults(figure: Any) -> list[str]:
    """What cannot be read."""
    figure.draw_without_rendering()
    renderer, canvas = figure.canvas.get_renderer(), figure.bbox
    boxes = [(text, extent(text, renderer), axes) for text, axes in texts(figure)]
    found = []
    for text, box, axes in boxes:
        is_clipped = axes is not None and text.get_clip_on() and text.get_clip_box() is not None
        frame = axes.get_window_extent(renderer) if is_clipped else canvas
        if box.x0 < frame.x0 - SLACK or box.x1 > frame.x1 + SLACK or box.y0 < -SLACK or box.y1 > canvas.y1 + SLACK:
            found.append(f"{text.get_text()!r} is cut at {[round(one) for one in box.extents]}")
    for (one, first, _), (other, second, _) in combinations(boxes, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        if wide > SLACK and high > SLACK:
            found.append(f"{one.get_text()!r} covers {other.get_text()!r}")
    return found


def extent(text: Any, renderer: Any) -> Any:
    """The box of the letters alone, without the arrow of a note."""
    from matplotlib.text import Text

    return Text.get_window_extent(text, renderer)


def texts(figure: Any) -> list[tuple[Any, Any]]:
    """Every text that shows, with its axes; ticks outside the limits do not show."""
    found = [(text, None) for text in figure.texts]
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        own = [*axes.texts, axes.title, axes._left_title, axes._right_title]
        if axes.axison:
            own += [axes.xaxis.label, axes.yaxis.label, *ticks(axes.xaxis), *ticks(axes.yaxis)]
        if axes.get_legend() is not None:
            own += axes.get_legend().get_texts()
        found += [(text, axes) for text in own]
    return [(text, axes) for text, axes in found if text.get_visible() and text.get_text().strip()]


def ticks(axis: Any) -> list[Any]:
    """Labels of the ticks that are drawn."""
    low, high = sorted(axis.get_view_interval())
    slack = (high - low) * 1e-9
    shown = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [one.label1 for one in shown if low - slack <= one.get_loc() <= high + slack and one.label1.get_visible()]
