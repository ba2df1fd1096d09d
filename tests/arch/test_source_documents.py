"""The page of the source documents names functions and tests that exist, and says of each rule one or the other."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "source-documents.md"
FUNCTION = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
SECTIONS = 3
ROWS_MIN = 55
NOT_SHOWN = ("not built", "not needed")


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes, methods as `Class.method`, and module constants of a file; none when there is no file."""
    if not (ROOT / path).is_file():
        return frozenset()
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{each.name}" for each in inner}
        if isinstance(node, ast.Assign):
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


def rows() -> list[list[str]]:
    """The cells of all tables, below their heads."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "rule of the document"]


def test_every_function_that_is_named_exists() -> None:
    """A link with a name in code style is a class, function, method or constant of that file."""
    named = [found.groups() for found in FUNCTION.finditer(PAGE.read_text())]
    assert len(named) > ROWS_MIN // 2
    assert [(name, path) for name, path in named if name not in names_in(path)] == []


def test_every_test_that_is_named_exists() -> None:
    """`file::function`, and the third column has nothing else."""
    named = [TEST.fullmatch(row[2]) for row in rows() if row[2]]
    assert all(named), [row for row in rows() if row[2] and not TEST.fullmatch(row[2])]
    missing = [found[0] for found in named if found is not None and found[2] not in names_in(found[1])]
    assert missing == []


def test_every_rule_is_carried_out_or_said_not_to_be() -> None:
    """All documents, each rule once; only what is not built or not needed is shown by nothing."""
    table = rows()
    assert len(table) >= ROWS_MIN
    assert all(len(row) == 3 and row[0] and row[1] for row in table)
    assert len({row[0] for row in table}) == len(table)
    assert [row[0] for row in table if not row[2] and not row[1].startswith(NOT_SHOWN)] == []
    assert PAGE.read_text().count("\n## ") == SECTIONS


def test_a_name_that_is_none_is_seen() -> None:
    """The lookup in the files is a real one."""
    assert "Raft._vote" in names_in("controller/raft/core.py")
    assert "Raft.vote" not in names_in("controller/raft/core.py")
    assert not names_in("controller/raft/nothing.py")
