"""The live view of the stories in examples/: the link that one prints signs in and shows its devices. Slow."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.visitor import DESK, LIGHT, Visitor
from tests.processes.rig import Server
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def told(name: str, out: Path) -> Iterator[list[str]]:
    """A story that runs meanwhile: the links to the console that it has printed; then Ctrl-C ends it."""
    command = [
        sys.executable,
        str(ROOT / "examples" / f"{name}.py"),
        "--headless",
        "--out",
        str(out),
        "--seconds",
        "300",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as story:
        assert story.stdout is not None
        links: list[str] = []
        rest: list[str] = []
        try:
            for line in story.stdout:
                links += re.findall(r"^console: (http://127\.0\.0\.1:\S+)", line)
                if links and not line.startswith("console: "):
                    break
            yield links
        finally:
            story.send_signal(signal.SIGINT)
            story.send_signal(signal.SIGINT)
            rest = story.stdout.readlines()
    assert story.returncode == 130, rest
    assert rest[-1] == f"{name} was interrupted before its end\n"


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("building", r"site/hq/floor/\d/room/\d+/power: \d+ "),
        ("fleet", r"fleet/press-\d+/telemetry: \d+"),
    ],
)
def test_the_link_of_a_story_shows_its_devices(
    name: str, tile: str, chromium: Browser, tmp_path: Path, screenshots: Path
) -> None:
    """One click, no form, no password."""
    with told(name, tmp_path / "out") as links, Visitor(chromium, Server(tmp_path / "unused"), DESK, LIGHT) as visitor:
        visitor.page.goto(links[0])
        visitor.heading("Live values").wait_for()
        visitor.page.get_by_label(re.compile(f"^{tile}")).nth(5).wait_for()
        visitor.settled()
        visitor.page.screenshot(path=screenshots / f"story-{name}.png")
        assert visitor.overhang() == 0
