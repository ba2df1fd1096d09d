"""Diagrams of the documents: each has its pictures, a title for those who cannot see them, and stays text elsewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tests.support.tree import ROOT
from tools import diagrams


def test_every_diagram_is_drawn_as_it_is_written() -> None:
    """Also those that were changed; and nothing is kept for diagrams that are gone."""
    wanted = {name for _, source in diagrams.blocks() for name in diagrams.names(source)}
    assert wanted, "the documents have no diagrams"
    assert {path.name for path in diagrams.PICTURES.iterdir()} == wanted, "run python -m tools.diagrams"


def test_every_diagram_has_a_title() -> None:
    """It is the text of the picture."""
    assert [document.name for document, source in diagrams.blocks() if not diagrams.TITLE.search(source)] == []


def test_pictures_run_and_fetch_nothing() -> None:
    """They are shown by pages that promise so, and stand alone as files."""
    for path in diagrams.PICTURES.iterdir():
        root = ET.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"<script|href=\"http|url\(http|@import|\bon\w+=", path.read_text()), path.name


def test_a_page_gets_both_pictures_in_the_place_of_the_block() -> None:
    """What surrounds it stays."""
    source = "graph TD\n    accTitle: What leads where\n    a --> b\n"
    light, dark = diagrams.names(source)
    page = f"before\n\n```mermaid\n{source}```\n\n```text\nx\n```\n"
    assert diagrams.pictured(page, "../assets/diagrams") == (
        f"before\n\n![What leads where](../assets/diagrams/{light}#only-light)\n"
        f"![What leads where](../assets/diagrams/{dark}#only-dark)\n\n```text\nx\n```\n"
    )
    assert [path.relative_to(ROOT).parts[0] for path, _ in diagrams.blocks()] == ["docs"] * len([*diagrams.blocks()])
