"""How many concepts the house has: counted, and not more than `tools/concepts.toml` allows.

A file or a class may be of any length that one noun needs; what is bounded is how often the same idea is written anew:
places that connect to a server, ports that accept, rights placed by hand, signatures repeated for the compiler, and
the lines and classes of each package. The table has the most there may be of each, and what is aimed at. A count above
its bound fails; the bound is raised in the commit that says why. A count well below it fails too, so that what was won
stays won: `tools/concepts.py --tighten` writes the present counts.

Pure but for reading the files of the working tree.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "concepts.toml"
PACKAGES = (
    "broker", "console", "controller", "grpc_proxy", "lightmq", "mqtt_bridge", "mqtt_proxy", "pyspark_rocketmq",
    "remoting", "runtime", "spark_connector",
)  # fmt: skip
SLACK, LINES_SLACK = 0.02, 200
"""Part of a bound, and number of lines, by which a count may stay below it."""
CONNECTING = frozenset({"dial", "_dial", "open_connection", "create_connection", "sock_connect"})
"""Functions whose callers choose a server and connect to it."""
ACCEPTING = frozenset({"create_server", "start_server", "TCPSite", "sock_accept"})
AUTHORIZING = frozenset({"authorize", "_authorize"})
_INVARIANT = re.compile(r"\bInvariants?\b")
_PRIVATE = re.compile(r"(?<!\bself)(?<!\bcls)\._(?!_)(\w+)")
_PATCHED = re.compile(r"\b(?:monkeypatch|patch|patched)\.set\w+\(")
_RULE = re.compile(r"\b(?:Thread|Loop) rule\b")
TITLES = {
    "lines": "lines of Python in the product",
    "classes": "classes",
    "protocols": "classes that are protocols",
    "connecting_files": "files that connect to a server",
    "accepting_files": "files that accept connections",
    "authorize_calls": "rights placed by hand",
    "pxd_lines": "lines of declarations for the compiler",
    "double_docstrings": "module docstrings with two invariants or rules",
    "private_names_in_tests": "private names of the product that tests use",
    "patched": "things that tests patch",
    "test_lines": "lines of tests",
}
"""Name of a count -> what is counted."""


@dataclass(slots=True)
class _Module:
    """What one module of the product has."""

    calls: Counter[str] = field(default_factory=Counter)
    classes: int = 0
    protocols: int = 0

    def add(self, node: ast.AST) -> None:
        """Count one node of its tree."""
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                self.calls[function.attr] += 1
            elif isinstance(function, ast.Name):
                self.calls[function.id] += 1
        elif isinstance(node, ast.ClassDef):
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            self.classes += 1
            self.protocols += any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def _is_double(text: str) -> bool:
    return len(_INVARIANT.findall(text)) > 1 or len(_RULE.findall(text)) > 1


def counts() -> dict[str, int]:
    """Name of a count -> its value; `lines.PACKAGE` for each package."""
    found = Counter[str](dict.fromkeys(TITLES, 0))
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            _add_module(found, package, path.read_text())
        found["pxd_lines"] += sum(path.read_text().count("\n") for path in (ROOT / package).rglob("*.pxd"))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        found["test_lines"] += text.count("\n")
        found["private_names_in_tests"] += len(set(_PRIVATE.findall(text)))
        found["patched"] += len(_PATCHED.findall(text))
    return dict(found)


def _add_module(found: Counter[str], package: str, text: str) -> None:
    tree, module, lines = ast.parse(text), _Module(), text.count("\n")
    for node in ast.walk(tree):
        module.add(node)
    found["lines"] += lines
    found[f"lines.{package}"] += lines
    found["classes"] += module.classes
    found["protocols"] += module.protocols
    found["connecting_files"] += not CONNECTING.isdisjoint(module.calls)
    found["accepting_files"] += not ACCEPTING.isdisjoint(module.calls)
    found["authorize_calls"] += sum(module.calls[name] for name in AUTHORIZING)
    found["double_docstrings"] += _is_double(ast.get_docstring(tree) or "")


def complaints(found: dict[str, int], bounds: dict[str, int]) -> list[str]:
    """What is over its bound, far below it, or has none."""
    said = [f"{name} is counted and has no bound" for name in sorted(found.keys() - bounds.keys())]
    said += [f"{name} has a bound and is not counted" for name in sorted(bounds.keys() - found.keys())]
    for name in sorted(found.keys() & bounds.keys()):
        count, bound = found[name], bounds[name]
        if count > bound:
            said.append(
                f"{name}: {count}, {bound} allowed: write it with what there is, or raise the bound and say why"
            )
        elif count < bound - max(LINES_SLACK if "lines" in name else 1, SLACK * bound):
            said.append(f"{name}: {count}, {bound} allowed: keep what was won, with tools/concepts.py --tighten")
    return said


def load() -> tuple[dict[str, int], dict[str, int]]:
    """(bounds, goals) of the table."""
    table = tomllib.loads(TABLE.read_text())
    return table["bounds"], table["goals"]


def tighten(found: dict[str, int]) -> None:
    """Write the present counts where they are below their bounds; the rest of the table stays."""
    text = TABLE.read_text()
    head, mark, tail = text.partition("[bounds]\n")
    for name, count in found.items():
        line = re.compile(rf'^("?){re.escape(name)}\1 = (\d[\d_]*)', re.MULTILINE)
        match = line.search(tail)
        if match and count < int(match[2]):
            tail = tail[: match.start(2)] + f"{count}" + tail[match.end(2) :]
    TABLE.write_text(head + mark + tail)


def main(arguments: list[str]) -> int:
    """Print the counts; status 1 when some are out of bounds."""
    found = counts()
    if arguments == ["--tighten"]:
        tighten(found)
    bounds, goals = load()
    for name, title in TITLES.items():
        print(f"{found[name]:8} of {bounds.get(name, 0):8}  goal {goals.get(name, '-'):>7}  {title}")
    said = complaints(found, bounds)
    print(*said, sep="\n")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
