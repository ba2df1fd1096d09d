"""The table of attacks names existing tests, each once in its class, and no class is empty."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.tree import ROOT

PAGE = ROOT / "docs" / "attack-classes.md"
CLASSES = 16


@cache
def functions_of(path: str) -> frozenset[str]:
    """Names of the tests of a file; none when there is no file."""
    if not (ROOT / path).is_file():
        return frozenset()
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def rows() -> list[list[str]]:
    """The cells of the table, below its head."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_test_that_is_named_exists() -> None:
    """`file::function`, and the function is a test."""
    missing = []
    for _, attempt, named in rows():
        path, _, function = named.strip("`").partition("::")
        if not function.startswith("test_") or function not in functions_of(path):
            missing.append(f"{attempt}: {named}")
    assert not missing, missing


def test_the_table_is_whole() -> None:
    """All classes, each attempt once."""
    table = rows()
    assert all(len(row) == 3 and row[1] for row in table), table
    assert len([row for row in table if row[0]]) == CLASSES
    assert len({row[1] for row in table}) == len(table)


def test_a_name_that_is_no_test_is_seen() -> None:
    """The lookup in the files is a real one."""
    assert "test_the_table_is_whole" in functions_of("tests/arch/test_attack_classes.py")
    assert not functions_of("tests/arch/test_of_nothing.py")
