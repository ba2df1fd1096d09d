"""The picture of a run: acknowledged messages per second over time, and a bar for every fault. Plain SVG, no library.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, TOP, CHART, ROW = 1_200, 150, 40, 220, 18
COLOURS = {
    "kill": "#d62728", "kill_most": "#b22222", "kill_role": "#8c1515", "kill_all": "#3d0000", "pause": "#ff7f0e",
    "pause_most": "#b35900", "restart_loop": "#e377c2", "cut": "#1f77b4", "cut_in": "#6baed6", "cut_out": "#9ecae1",
    "partial_cut": "#17becf", "loss": "#2ca02c", "delay": "#bcbd22", "reset": "#7f7f7f", "full_disk": "#9467bd",
    "wipe": "#000000", "clock_jump": "#8c564b", "leave": "#f7b6d2", "ring": "#08306b",
    "bridge": "#2171b5", "flap": "#c6dbef", "slow_network": "#98df8a", "slow_disk": "#c5b0d5", "lost_tail": "#ffbb78",
    "lost_tails": "#e6550d", "lost_epochs": "#c49c94", "bit_flip": "#ff9896", "learner_anew": "#dbdb8d",
    "left_behind": "#636363", "torn_journal": "#fdae6b", "wipe_controller": "#252525", "pause_long": "#fdd0a2",
    "rolling": "#a1d99b",
}  # fmt: skip
LEAST_PX = 2.0
KINDS_PER_LINE = 13


def picture(
    faults: Sequence[dict[str, Any]], rates: Sequence[float], nodes: Sequence[str], seconds: float, title: str
) -> str:
    """``rates``: acknowledged messages in each second; ``faults``: at, kind, targets, lasts_s of each."""
    height = TOP + CHART + 30 + ROW * len(nodes) + 60
    scale = (WIDTH - LEFT - 20) / max(seconds, 1.0)
    size, font = f'width="{WIDTH}" height="{height}"', 'font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_curve(rates, scale),
        *_axis(seconds, scale, height),
        *_bars(faults, nodes, scale),
        *_legend({fault["kind"] for fault in faults}, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _curve(rates: Sequence[float], scale: float) -> list[str]:
    top = max([*rates, 1.0])
    points = " ".join(f"{LEFT + at * scale:.1f},{TOP + CHART * (1 - rate / top):.1f}" for at, rate in enumerate(rates))
    labels = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + CHART * (1 - share)
        labels.append(f'<line x1="{LEFT}" x2="{WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        labels.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * share:.0f}/s</text>')
    return [*labels, f'<polyline points="{points}" fill="none" stroke="#1f4e79" stroke-width="1.2"/>']


def _axis(seconds: float, scale: float, height: int) -> list[str]:
    step = next((step for step in (5, 10, 30, 60, 300, 600, 1_800, 3_600) if seconds / step <= 24), 7_200)
    parts = []
    for at in range(0, int(seconds) + 1, step):
        x = LEFT + at * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - 56}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + CHART + 16}" text-anchor="middle">{at} s</text>')
    return parts


def _bars(faults: Sequence[dict[str, Any]], nodes: Sequence[str], scale: float) -> list[str]:
    begin = TOP + CHART + 30
    rows = {node: begin + ROW * number for number, node in enumerate(nodes)}
    parts = [f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(node)}</text>' for node, y in rows.items()]
    for fault in faults:
        width = max(fault["lasts_s"] * scale, LEAST_PX)
        colour = COLOURS.get(fault["kind"], "#444444")
        for node in fault["targets"]:
            told = escape(f"{fault['kind']} {node} at {fault['at']:.1f} s for {fault['lasts_s']:.1f} s")
            place = f'x="{LEFT + fault["at"] * scale:.1f}" y="{rows[node] + 2}" width="{width:.1f}" height="{ROW - 4}"'
            parts.append(f'<rect {place} fill="{colour}"><title>{told}</title></rect>')
    return parts


def _legend(kinds: set[str], height: int) -> list[str]:
    parts = []
    for number, kind in enumerate(sorted(kinds)):
        x, y = LEFT + number % KINDS_PER_LINE * 80, height - 44 + number // KINDS_PER_LINE * 16
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS.get(kind, "#444444")}"/>')
        parts.append(f'<text x="{x + 13}" y="{y + 9}">{escape(kind)}</text>')
    return parts
