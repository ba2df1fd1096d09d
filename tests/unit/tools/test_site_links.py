"""The check of a built site finds what a reader would stumble over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site_links import problems


def built(folder: Path, body: str) -> Path:
    (folder / "sub").mkdir()
    (folder / "index.html").write_text(f"<html><head><title>x</title></head><body>{body}</body></html>")
    (folder / "sub" / "index.html").write_text('<h1 id="here">x</h1><a name="old"></a>')
    (folder / "a b.txt").write_text("")
    return folder


def test_a_sound_site_has_no_problems(tmp_path: Path) -> None:
    """Pages, anchors, folders, names with a blank, other sites, the page's own anchor."""
    links = (
        "sub/index.html#here",
        "sub/#old",
        "sub/",
        "a%20b.txt",
        "https://e.org/x#y",
        "#own",
        "mailto:a@b.c",
    )
    body = "".join(f'<a href="{link}">x</a>' for link in links) + '<p id="own"></p>'
    assert problems(built(tmp_path, body)) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="none.html">x</a>', "index.html links to none.html: no such file"),
        ('<a href="sub/#none">x</a>', "index.html links to sub/#none: no such anchor"),
        ('<a href="#none">x</a>', "index.html links to #none: no such anchor"),
        ('<img src="none.png">', "index.html links to none.png: no such file"),
        ('<script src="https://cdn.example/x.js"></script>', "index.html fetches https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x">', "index.html fetches //fonts.example/x"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, body: str, problem: str) -> None:
    """Page, link and reason."""
    assert problems(built(tmp_path, body)) == [problem]
