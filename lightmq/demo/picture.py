"""Pictures that tell one story: a title that says what happened, units, notes at the data, one palette, light.

    Picture        title, subtitle and footer around a grid of axes, saved as PNG
    INK ...     the palette; SERIES are the colours of lines in their order, `heat()` is the scale of quantities

Invariant: matplotlib is imported by the first picture; nothing is drawn outside the main thread, and no window is
opened. Sizes are inches at 150 dots each.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap

INK, MUTED, FAINT, GRID, PAPER = "#172033", "#5b667a", "#9aa4b5", "#e4e8ef", "#fcfcfd"
BLUE, TEAL, AMBER, RED, VIOLET, GREEN = "#2b6be4", "#0e9f8e", "#f0a020", "#e0443e", "#8250df", "#3fa34d"
SERIES = (BLUE, TEAL, AMBER, VIOLET, RED, GREEN)
HEAT = ("#f1f4f9", "#fdebc8", "#f9c26b", "#ee8440", "#cf3a45", "#7a1f4f")
DOTS_PER_INCH, COLOURS = 150, 192
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
        self.figure.text(self._x, 1 - 0.34 / height, title, fontsize=17, fontweight="bold", va="center")
        self.figure.text(self._x, 1 - 0.68 / height, subtitle, fontsize=10.5, color=MUTED, va="center")

    @property
    def _x(self) -> float:
        return 0.45 / float(self.figure.get_figwidth())

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
        self.figure.text(self._x, 0.26 / self._height, footer, fontsize=8, color=FAINT, va="center")
        from PIL import Image

        drawn = BytesIO()
        self.figure.savefig(drawn, dpi=DOTS_PER_INCH)
        _pyplot().close(self.figure)
        # A palette makes the file a third as large, and nobody sees it.
        Image.open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def callout(axes: Any, text: str, at: tuple[Any, Any], shift: tuple[float, float], color: str = INK) -> None:
    """Write a note beside a point of the data; `shift` is its distance in points."""
    axes.annotate(
        text, at, xytext=shift, textcoords="offset points", fontsize=8.5, color=color, linespacing=1.35,
        ha="left" if shift[0] >= 0 else "right", va="center", zorder=10,
        bbox={"boxstyle": "round,pad=0.35", "fc": PAPER, "ec": "none", "alpha": 0.85},
        arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 3},
    )  # fmt: skip
