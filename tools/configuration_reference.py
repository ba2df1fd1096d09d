"""Writes ``docs/configuration.md`` from the declared tables: ``python -m tools.configuration_reference [--check]``.

With ``--check`` nothing is written; the exit status says whether the page is what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from lightmq.configuration import SECTIONS
from runtime.config import render

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"


def main(arguments: Sequence[str], page: Path = PAGE) -> int:
    """Write or check the page; the answer is the exit status."""
    text = render(SECTIONS)
    current = page.exists() and page.read_text(encoding="utf-8") == text
    if "--check" in arguments:
        if not current:
            sys.stderr.write(f"{page} is out of date; run: python -m tools.configuration_reference\n")
        return 0 if current else 1
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
