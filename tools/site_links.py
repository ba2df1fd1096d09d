"""Checks a built site: every link and anchor leads somewhere inside it, and nothing is fetched from elsewhere.

Invariant: only files are read, so the verdict is that of a reader who opens the folder without a network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "modulepreload"}


@dataclass
class Page(HTMLParser):
    """What one page links to, what it fetches, and which anchors it has."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one tag names."""
        named = {name: value or "" for name, value in attrs}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        self.fetched += [value for name, value in named.items() if (tag, name) in FETCHED]
        if tag == "link" and FETCHED_LINKS & set(named.get("rel", "").split()):
            self.fetched.append(named.get("href", ""))


def read(folder: Path) -> dict[Path, Page]:
    """Every page of the site."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.resolve()] = Page()
        page.feed(path.read_text())
    return pages


def problems(folder: Path) -> list[str]:
    """One sentence for each link that leads nowhere and each thing that is fetched from elsewhere; empty: sound."""
    pages = read(folder)
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        found += [f"{name} fetches {each}" for each in page.fetched if urlsplit(each).netloc]
        for link in [*page.links, *page.fetched]:
            why = broken(path, link, pages)
            if why:
                found.append(f"{name} links to {link}: {why}")
    return found


def broken(path: Path, link: str, pages: dict[Path, Page]) -> str:
    """Why a link leads nowhere; empty: it does lead somewhere, or out of the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors and not anchor.startswith("__"):
        return "no such anchor"
    return ""
