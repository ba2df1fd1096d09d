"""The glossary is short and in use, and words that have a better established term are not used as names."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.support import house
from tests.support.allowed import check
from tests.support.tree import ROOT

TERMS_MAX = 80
DENIED = set(
    re.findall(r"\w+", "hold door canvass farewell told heard said news wish look hurry gone brought whoever pen")
)
PAGE = (ROOT / "docs" / "glossary.md").read_text()
ROWS = [row for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE) if row[0] != "term"]


def test_terms_have_one_meaning_and_are_used() -> None:
    """No term is defined twice, and each occurs in the product's code or its prose."""
    terms = [term.strip().lower() for term, _ in ROWS]
    assert len(terms) == len(set(terms)) <= TERMS_MAX
    text = "\n".join(module.path.read_text() for module in house.modules().values()).lower()
    text += "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md").lower()
    flat = re.sub(r"[\s_-]+", " ", text)
    unused = [term for term in terms if term.replace("-", " ") not in flat]
    assert not unused, unused


def test_denied_words_are_no_names() -> None:
    """Of classes, functions and modules."""
    found: Counter[str] = Counter()
    for module in house.modules().values():
        names = [module.name.rpartition(".")[2]]
        names += [node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef | house.Function)]
        for name in names:
            words = re.findall(r"[a-z]+|[A-Z][a-z]+|[A-Z]+", name.replace("look_up", ""))
            found.update({word.lower() for word in words} & DENIED)
    check("denied_words", found, "names for which the glossary has a better word")
