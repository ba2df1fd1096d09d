"""Function bodies and docstrings of modules are measured, without a list of exceptions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.tree import PACKAGES, ROOT, relative

BODY_LINES_MAX = 50


def modules(*folders: str) -> list[Path]:
    """Every Python file of the given top-level folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


@pytest.mark.parametrize("path", modules(*PACKAGES, "tests", "tools", "benchmarks"), ids=relative)
def test_function_sizes(path: Path) -> None:
    """A function that grows has two steps."""
    text = path.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [
        f"{node.name} ({body_lines(node)} lines, line {node.lineno})"
        for node in functions
        if body_lines(node) > BODY_LINES_MAX
    ]
    assert not long, f"{relative(path)}: {', '.join(long)}"


@pytest.mark.parametrize("path", modules(*PACKAGES), ids=relative)
def test_module_opens_with_its_purpose(path: Path) -> None:
    """Every module states its purpose before any code."""
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py" and not tree.body:
        return
    docstring = ast.get_docstring(tree) or ""
    assert len(docstring) >= 40, f"{relative(path)} begins without its purpose"
