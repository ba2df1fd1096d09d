"""The console's files by themselves: nothing from elsewhere, nothing inline, every icon drawn, every module small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.tree import ROOT

STATIC = ROOT / "console" / "static"
MODULES = sorted((STATIC / "app").rglob("*.js"))
STYLES = sorted((STATIC / "style").glob("*.css"))
LINES_MAX = 600
MODULES_MAX = 20
FUNCTION = re.compile(r"^(?:export )?(?:async )?function (\w+)")


def named(path: Path) -> str:
    """Path for the name of a test."""
    return path.relative_to(STATIC).as_posix()


@pytest.mark.parametrize("path", [*MODULES, *STYLES], ids=named)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    """The console works on a machine without a network, and tells nobody that it is open."""
    found = re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z]{2,}[^\s'\"`)]*", path.read_text())
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_modules_are_checked_small_and_explained(path: Path) -> None:
    """Each module is checked by TypeScript, says what it is for, and its functions fit a screen."""
    lines = path.read_text().splitlines()
    assert lines[0] == "// @ts-check"
    if path.name != "main.js":
        assert lines[1].startswith("/**"), "the purpose comes first"
    assert len(lines) <= LINES_MAX
    starts = [number for number, line in enumerate(lines) if FUNCTION.match(line)]
    for start in starts:
        end = next(number for number, line in enumerate(lines[start:], start) if line == "}" or line.endswith("; }"))
        assert end - start <= 50, lines[start]


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=named)
def test_folders_can_be_surveyed(folder: Path) -> None:
    """As in the rest of the tree."""
    assert len(list(folder.glob("*.js"))) <= MODULES_MAX


def test_every_icon_that_is_used_is_drawn() -> None:
    """An icon that is missing shows nothing, and no error."""
    drawn = set(re.findall(r'<symbol id="([a-z]+)"', (STATIC / "icons.svg").read_text()))
    text = "\n".join(path.read_text() for path in MODULES)
    used = set(re.findall(r'\$\{Icon\} name="([a-z]+)"', text)) | set(re.findall(r"\bicon(?:: '|=\")([a-z]+)", text))
    assert used
    assert used <= drawn, used - drawn


def test_every_colour_is_one_of_the_design() -> None:
    """Colours stand in the tokens alone, each for light and dark; elsewhere they are named."""
    for path in STYLES:
        if path.name != "tokens.css":
            assert not re.findall(
                r"#[0-9a-f]{3,8}\b(?![^;]*light-dark)", re.sub(r"light-dark\([^;]*\)", "", path.read_text())
            )
    names = set(re.findall(r"^  (--[a-z0-9-]+):", (STATIC / "style" / "tokens.css").read_text(), re.MULTILINE))
    used = {name for path in STYLES for name in re.findall(r"var\((--[a-z0-9-]+)", path.read_text())}
    assert used - {"--ink"} <= names


class Inline(HTMLParser):
    """Collects what the content security policy would refuse."""

    def __init__(self) -> None:
        """Start with nothing found."""
        super().__init__()
        self.found: list[str] = []
        self.local: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Styles, handlers and scripts inside the page."""
        given = dict(attributes)
        if tag == "style" or (tag == "script" and "src" not in given):
            self.found.append(tag)
        self.found += [name for name in given if name == "style" or name.startswith("on")]
        self.local += [value for name, value in attributes if name in {"src", "href"} and value]


def test_the_page_has_nothing_inline() -> None:
    """And every file that it names exists."""
    parser = Inline()
    parser.feed((STATIC / "index.html").read_text())
    assert not parser.found
    assert len(parser.local) > 5
    for address in parser.local:
        assert (ROOT / address.removeprefix("/")).is_file(), address
