"""The documentation site as it is built: sound, complete, and usable from a folder in a browser without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt

from tests.support.tree import ROOT
from tools import site, site_pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("mkdocs", reason="needs mkdocs-material (extra dev)")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COUNTED = ("h2", "h3", "li", "table", "td", "pre")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this checkout, with every link and anchor checked."""
    folder = tmp_path_factory.mktemp("site")
    assert site.build(folder / site.VERSION) == []
    site.list_versions(folder, site.VERSION)
    return folder


class Content(HTMLParser):
    """How often the elements of the text occur, without navigation."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys(COUNTED, 0)
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or tag == "article"
        if self._inside and tag in COUNTED:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "article"


def expected(text: str) -> dict[str, int]:
    """The same by CommonMark with tables, as the repository's pages are read."""
    html = MarkdownIt("commonmark").enable("table").render(text)
    return {tag: len(re.findall(rf"<{tag}\b", html)) for tag in COUNTED}


def test_pages_have_what_the_documents_have(built: Path) -> None:
    """Lists, tables and blocks are the same in the repository and in the site, by two different parsers."""
    different = []
    for name, text in site_pages.assemble(ROOT).texts.items():
        if not name.endswith(".md"):
            continue
        content = Content()
        content.feed((built / site.VERSION / re.sub(r"README\.md$", "index.md", name)).with_suffix(".html").read_text())
        if content.counts != expected(text):
            wrong = {
                tag: (here, expected(text)[tag]) for tag, here in content.counts.items() if here != expected(text)[tag]
            }
            different.append((name, wrong))
    assert not different


def test_references_are_filled(built: Path) -> None:
    """From docstrings and declarations; diagrams are pictures, for light and for dark pages."""
    life = (built / site.VERSION / "life_of_a_message.html").read_text()
    assert life.count(".svg#only-") == 2
    assert "sequenceDiagram" not in life
    assert "Sends messages to a broker" in (built / site.VERSION / "api.html").read_text()
    assert "lightmq cluster status" in (built / site.VERSION / "command-line.html").read_text()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Any]:
    """A page of the system's Chromium."""
    made = chromium.new_page()
    yield made
    made.close()


def test_it_is_searched_without_a_server(built: Path, page: Any) -> None:
    """From the folder: nothing is asked of a network, no script fails, the version is shown."""
    asked: list[str] = []
    failed: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto((built / "index.html").as_uri())
    page.wait_for_url(f"**/{site.VERSION}/index.html")
    page.locator("select.versions").wait_for()
    assert page.locator("select.versions").input_value() == site.VERSION
    page.keyboard.press("/")
    page.keyboard.type("shared subscriptions")
    page.locator(".md-search-result__link", has_text="Shared subscriptions").first.wait_for()
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/howto/shared-subscriptions.html**")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert failed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable(built: Path, page: Any, scheme: str) -> None:
    """By axe, on a wide and on a narrow screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe (extra dev)").Axe()
    page.emulate_media(color_scheme=scheme)
    pages = (
        *(("index.html", 1280), ("tutorial/first-message.html", 380), ("howto/spark.html", 1280)),
        *(("delivery-contract.html", 380), ("life_of_a_message.html", 1280), ("project/index.html", 380)),
    )
    for name, width in pages:
        page.set_viewport_size({"width": width, "height": 800})
        page.goto((built / site.VERSION / name).as_uri())
        page.locator("select.versions").wait_for(state="attached")
        found = axe.run(page).response["violations"]
        grave = [
            (each["id"], each["nodes"][0]["html"][:120]) for each in found if each["impact"] in {"serious", "critical"}
        ]
        assert not grave, name
