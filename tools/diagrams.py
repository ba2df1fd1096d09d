"""The diagrams of the documents as pictures, so that the site shows them without a script from elsewhere.

    python -m tools.diagrams        draw the Mermaid blocks of the documents that have no pictures yet

A block stays in its document as text, which Git hosts draw themselves or show as it is. Its pictures, for light and for
dark pages, are in `docs/assets/diagrams`, named by a digest of the text, so a changed block has no picture until it is
drawn again. Drawing needs npm, Playwright and a Chromium; building the site does not.
Invariant: a block begins with its kind and has an `accTitle`, which is what somebody who cannot see the picture reads.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "assets" / "diagrams"
BLOCK = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"^\s*accTitle:\s*(.+)$", re.MULTILINE)
THEMES = {"light": "neutral", "dark": "dark"}
"""Colours of the page -> theme of Mermaid."""
MERMAID = "mermaid@11"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAW = """async ([source, settings]) => {
    mermaid.initialize(settings);
    return (await mermaid.render("diagram", source)).svg;
}"""


def names(source: str) -> list[str]:
    """File names of a block's pictures, those for light pages first."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    return [f"{digest}-{colours}.svg" for colours in THEMES]


def blocks(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Every Mermaid block below `docs`: its document and its text."""
    for document in sorted((root / "docs").rglob("*.md")):
        for found in BLOCK.finditer(document.read_text()):
            yield document, found["source"]


def pictured(text: str, folder: str) -> str:
    """The text of a page with pictures, in the given folder, in the place of Mermaid blocks."""

    def picture(found: re.Match[str]) -> str:
        title = TITLE.search(found["source"])
        said = title[1].strip() if title else "Diagram"
        return "\n".join(
            f"![{said}]({folder}/{name}#only-{colours})"
            for colours, name in zip(THEMES, names(found["source"]), strict=True)
        )

    return BLOCK.sub(picture, text)


def draw() -> int:
    """Draw what has no pictures, remove pictures whose block is gone; return how many blocks were drawn."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    sources = {source for _, source in blocks()}
    wanted = {name for source in sources for name in names(source)}
    for stale in {path.name for path in PICTURES.glob("*.svg")} - wanted:
        (PICTURES / stale).unlink()
    missing = [source for source in sorted(sources) if not all((PICTURES / name).is_file() for name in names(source))]
    if missing:
        _draw(missing)
    return len(missing)


def _draw(sources: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        packed = subprocess.run(
            ["npm", "pack", MERMAID, "--silent"], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()
        subprocess.run(["tar", "-xzf", packed, "package/dist/mermaid.min.js"], cwd=folder, check=True)
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_content("<!doctype html><title>Diagrams</title>")
        page.add_script_tag(path=Path(folder, "package/dist/mermaid.min.js"))
        for source in sources:
            for theme, name in zip(THEMES.values(), names(source), strict=True):
                settings = {
                    "theme": theme,
                    "htmlLabels": False,
                    "flowchart": {"htmlLabels": False, "nodeSpacing": 24, "rankSpacing": 70},
                    "sequence": {"actorMargin": 36, "width": 110, "actorFontSize": 17, "messageFontSize": 17},
                    "fontFamily": "system-ui, sans-serif",
                    "deterministicIds": True,
                }
                (PICTURES / name).write_text(page.evaluate(DRAW, [source, settings]) + "\n")
        browser.close()


def main() -> int:
    """Draw, and say what was done."""
    print(json.dumps({"drawn": draw(), "folder": str(PICTURES.relative_to(ROOT))}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
