"""Pictures that tell one story: a title that says what happened, units, notes at the data, one palette, light.

    Picture        title, subtitle and footer around a grid of axes, saved as PNG
    beside, callout     notes that stay inside their panel and cover no other note; draw them when its limits are set
    log_scale      an axis of durations whose ticks can be read, however few decades there are
    INK ...     the palette; SERIES are the colours of lines in their order, `heat()` is the scale of quantities

Invariant: no text leaves the canvas, and no two notes of a panel overlap; one without any room is left out. matplotlib
is imported by the first picture; nothing is drawn outside the main thread, and no window is opened. Sizes are inches at
150 dots each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from io import BytesIO
from math import inf, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

INK, MUTED, FAINT, GRID, PAPER = "#172033", "#5b667a", "#9aa4b5", "#e4e8ef", "#fcfcfd"
BLUE, TEAL, AMBER, RED, VIOLET, GREEN = "#2b6be4", "#0e9f8e", "#f0a020", "#e0443e", "#8250df", "#3fa34d"
SERIES = (BLUE, TEAL, AMBER, VIOLET, RED, GREEN)
HEAT = ("#f1f4f9", "#fdebc8", "#f9c26b", "#ee8440", "#cf3a45", "#7a1f4f")
DOTS_PER_INCH, COLOURS = 150, 192
SHRINKS_TO = 0.6
"""A title or a footer that is too long for its page is written smaller, down to this share."""
ROWS = 7
"""So many places are tried below each other for a note."""
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 9.5,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
}


@cache
def _pyplot() -> Any:
    """Matplotlib in our style, imported by the first picture: two seconds of CPU that no other program should spend."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use({**STYLE, "axes.prop_cycle": cycler(color=SERIES)})
    return plt


def heat() -> LinearSegmentedColormap:
    """The scale of quantities."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", HEAT)


class Picture:
    """One picture. `grid` gives the room between title and footer; draw into axes made from it."""

    def __init__(self, title: str, subtitle: str, *, width: float = 12.0, height: float = 7.5) -> None:
        self.figure = _pyplot().figure(figsize=(width, height))
        self._height = height
        self._line(1 - 0.34 / height, title, fontsize=17, fontweight="bold")
        self._line(1 - 0.68 / height, subtitle, fontsize=10.5, color=MUTED)

    @property
    def _x(self) -> float:
        return 0.45 / float(self.figure.get_figwidth())

    def _line(self, y: float, text: str, **style: Any) -> None:
        """Write one line across the page, smaller where it would leave it."""
        line = self.figure.text(self._x, y, text, va="center", **style)
        size = float(line.get_fontsize())
        room = self.figure.bbox.x1 * (1 - self._x)
        width = line.get_window_extent(self.figure.canvas.get_renderer()).width
        if width > room:
            line.set_fontsize(size * max(room / width * 0.99, SHRINKS_TO))

    def grid(self, rows: int = 1, columns: int = 1, **options: Any) -> Any:
        """Return a GridSpec below the title; options are matplotlib's (`height_ratios`, `wspace`, ...)."""
        box = {"left": 0.07, "right": 0.965, "top": 1 - 1.25 / self._height, "bottom": 0.95 / self._height}
        return self.figure.add_gridspec(rows, columns, **(box | options))

    def axes(self, place: Any, title: str = "", *, x: str = "", y: str = "", **options: Any) -> Any:
        """Add axes at a place of the grid, with a title and the units of both axes."""
        axes = self.figure.add_subplot(place, **options)
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        return axes

    def save(self, path: Path, footer: str) -> None:
        """Write the PNG with a last line that says where its numbers come from."""
        self._line(0.26 / self._height, footer, fontsize=8, color=FAINT)
        self._write(path)

    def _write(self, path: Path) -> None:
        from PIL import Image

        drawn = BytesIO()
        self.figure.savefig(drawn, dpi=DOTS_PER_INCH)
        _pyplot().close(self.figure)
        # A palette makes the file a third as large, and nobody sees it.
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def callout(axes: Any, text: str, at: tuple[Any, Any], shift: tuple[float, float], color: str = INK) -> None:
    """Write a note beside a point of the data; `shift` is its distance in points, mirrored where there is no room."""
    note = axes.annotate(
        text, at, xytext=shift, textcoords="offset points", fontsize=8.5, color=color, linespacing=1.35,
        va="center", zorder=10,
        bbox={"boxstyle": "round,pad=0.35", "fc": PAPER, "ec": "none", "alpha": 0.85},
        arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 3},
    )  # fmt: skip
    (right, up), places = shift, []
    for farther in range(1, ROWS):
        places += [(x, y * farther) for x in (right, -right) for y in (up, -up)]

    def put(place: tuple[float, float]) -> None:
        note.set_position(place)
        note.set_horizontalalignment("left" if place[0] >= 0 else "right")

    _put_first(axes, note, places, put)


def beside(
    axes: Any,
    at: tuple[Any, float],
    text: str,
    color: str = INK,
    *,
    step: float = 0.0,
    data: bool = False,
    **style: Any,
) -> None:
    """Write a note to the right of a place, or to its left where there is more room.

    The place is a value of the x axis and, in the panel's height, from 0 to 1 (with `data` a value of the y axis); a
    note that would cover another one goes `step` lower, as often as it takes.
    """
    where = axes.transData if data else axes.get_xaxis_transform()
    box = {"boxstyle": "round,pad=0.15", "fc": PAPER, "ec": "none", "alpha": 0.8}
    given = {"fontsize": 8.5, "va": "center", "zorder": 9, "bbox": box} | style
    note = axes.text(*at, f" {text} ", transform=where, color=color, **given)
    rows = range(ROWS if step else 1)
    places = [(side, at[1] - step * row) for row in rows for side in ("left", "right")]

    def put(place: tuple[str, float]) -> None:
        note.set_horizontalalignment(place[0])
        note.set_y(place[1])

    _put_first(axes, note, places, put)


def _put_first(axes: Any, note: Any, places: list[Any], put: Callable[[Any], None]) -> None:
    """Leave the note at the first place where it is inside and covers no other; without one, take it away."""
    for place in places:
        put(place)
        if _has_room(axes, note):
            return
    note.remove()


def _has_room(axes: Any, note: Any) -> bool:
    from matplotlib.text import Text

    renderer = axes.figure.canvas.get_renderer()
    if hasattr(note, "update_positions"):
        note.update_positions(renderer)
    mine, frame = Text.get_window_extent(note, renderer), axes.get_window_extent(renderer)
    legend = axes.get_legend()
    if mine.x0 < frame.x0 or mine.x1 > frame.x1 or mine.y0 < frame.y0 or mine.y1 > frame.y1:
        return False
    if legend is not None and mine.overlaps(legend.get_window_extent(renderer)):
        return False
    others = [one for one in axes.texts if one is not note]
    return not any(mine.overlaps(Text.get_window_extent(one, renderer)) for one in others)


def log_scale(axes: Any) -> None:
    """Make the y axis logarithmic, a decade or more of it, with numbers at its powers of ten.

    Where those are few, 3 of each has one too. Draw the data first.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_yscale("log")
    low, high = axes.dataLim.intervaly
    if not 0 < low <= high < inf:
        low, high = 0.1, 10.0
    # At most the half decade that is missing is added on each side.
    missing = max(0.0, 1.0 - log10(high / low)) / 2
    low, high = low / 10**missing / 1.3, high * 10**missing * 1.3
    axes.set_ylim(low, high)
    decades = log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades < 2 else (1.0,), numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
