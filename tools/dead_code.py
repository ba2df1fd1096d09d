"""Names that are unused or used by tests only, found by vulture with the settings of `[tool.vulture]` in pyproject.

Classes, functions, methods, properties, imports and constants of modules count. Fields and attributes do not: those of
the wire's bodies and of records are read by codecs, by their position or by their name. Tests are not searched, so that
names used only by tests are found. Invariant: the list of exceptions is pyproject's, each with its reason; one that is
no longer needed is reported too.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from vulture.config import make_config
from vulture.core import Item, Vulture

KINDS = frozenset({"class", "function", "import", "method", "property", "unreachable_code"})
CERTAIN = 100
"""Confidence of what cannot be used, whatever its kind: arguments, code behind a return."""


def findings() -> list[str]:
    """Lines that name unused code, and exceptions that are not needed."""
    config = make_config([])
    vulture = Vulture(ignore_decorators=config["ignore_decorators"])
    vulture.scavenge(config["paths"], exclude=config["exclude"])
    excused: set[str] = set()
    found = []
    for item in vulture.get_unused_code(config["min_confidence"]):
        if not _counts(item):
            continue
        patterns = [pattern for pattern in config["ignore_names"] if fnmatchcase(item.name, pattern)]
        excused.update(patterns)
        if not patterns:
            found.append(item.get_report())
    needless = sorted(set(config["ignore_names"]) - excused)
    return found + [f"pyproject.toml: [tool.vulture] ignore_names {name!r} excuses nothing" for name in needless]


def _counts(item: Item) -> bool:
    if item.typ in KINDS or item.confidence == CERTAIN:
        return True
    line = Path(item.filename).read_text().splitlines()[item.first_lineno - 1]
    return item.typ == "variable" and re.match(rf"{re.escape(item.name)}\b", line) is not None


def main() -> int:
    """Print what was found; the exit status says whether there was anything."""
    found = findings()
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
