"""Lists of what a rule of the tree still finds: `tests/arch/allowed/RULE.txt`, a name and a number a line.

A list only shrinks: what is found beyond it fails, and so does a line that is no longer true.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.tree import ROOT

FOLDER = ROOT / "tests" / "arch" / "allowed"


def allowed(rule: str) -> dict[str, int]:
    """The entries of a rule's list with their numbers; empty without a list."""
    path = FOLDER / f"{rule}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {" ".join(row[:-1]): int(row[-1]) for row in rows}


def check(rule: str, found: Mapping[str, int], why: str) -> None:
    """Fail on what is found beyond the list of the rule, and on outdated lines."""
    listed = allowed(rule)
    new = {name: number for name, number in found.items() if number > listed.get(name, 0)}
    assert not new, f"{why}: {new}"
    mended = {name: number for name, number in listed.items() if found.get(name, 0) < number}
    assert not mended, f"remove it from tests/arch/allowed/{rule}.txt, or lower it: {mended}"
