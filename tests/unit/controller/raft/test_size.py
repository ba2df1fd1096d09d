"""The core can be read in one sitting."""

from __future__ import annotations

from tests.support.tree import ROOT

LINES_MAX = 1_000


def test_the_core_has_at_most_a_thousand_lines_with_its_docs():
    """Lines with text; empty ones are no reading."""
    texts = [path.read_text() for path in sorted((ROOT / "controller" / "raft").glob("*.py"))]
    assert sum(bool(line.strip()) for text in texts for line in text.splitlines()) <= LINES_MAX
