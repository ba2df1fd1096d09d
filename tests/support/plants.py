"""Planted bugs: one rule of the product is left out while a test runs, and the test must fail.

    @catches(Plant("members-too-early", "controller.raft.core:Raft.change", "max(began, index)", "index"))
    def test_members_do_not_change_before_the_first_entry(): ...

Such a test runs once as it is, and once for each plant, with one text of that function exchanged for another; there it
must raise what `raises` names and nothing else. A plant whose text is no
longer in its function exactly once ends the collection: it is mended together with the code. A patch that takes a
`MonkeyPatch`, as the simulations have them, is a plant too. Only functions that are not compiled take plants.

Invariant: what is exchanged is the function's code and nothing else, wherever it was imported to, and it is put back
after the test. `tests/conftest.py` has the fixture.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from inspect import unwrap
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.support.tree import ROOT

Patch = Callable[[pytest.MonkeyPatch], object]
FAILURES = (AssertionError, pytest.fail.Exception)
"""What a test ends with that says that something is wrong."""


@dataclass(frozen=True)
class Plant:
    """`before` is replaced by `after` in the function `where`, which is `module:Class.function`."""

    name: str
    where: str
    before: str
    after: str

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        """Exchange the code until the test is over."""
        module, _, path = self.where.partition(":")
        found = reduce(_member, path.split("."), import_module(module))
        patch.setattr(_function(found), "__code__", self.code())

    def code(self) -> CodeType:
        """The function's code with the bug. Raises ValueError when the text is not there exactly once."""
        module, _, path = self.where.partition(":")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        node: Any = ast.parse(source)
        for name in path.split("."):
            node = next((each for each in node.body if getattr(each, "name", "") == name), None)
            if node is None:
                raise ValueError(f"{self.name}: there is no {self.where}")
        text = dedent("\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno]))
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.before!r} is {text.count(self.before)} times in {self.where}")
        planted = compile(
            text.replace(self.before, self.after), self.where, "exec", __future__.annotations.compiler_flag
        )
        return next(each for each in planted.co_consts if isinstance(each, CodeType) and each.co_name == node.name)


def catches(*plants: Plant | Patch, raises: tuple[type[BaseException], ...] = FAILURES) -> Callable[[Any], Any]:
    """A test that fails with each of these plants."""
    for each in plants:
        if isinstance(each, Plant):
            each.code()  # one that does not fit is found out now: later it would count as caught
    marks = (pytest.mark.planted, pytest.mark.xfail(strict=True, raises=raises))
    cases = [pytest.param(each, id=_name(each), marks=marks) for each in plants]

    def mark(test: Any) -> Any:
        wanted = pytest.mark.parametrize("plant", [pytest.param(None, id="sound"), *cases], indirect=True)
        return pytest.mark.usefixtures("plant")(wanted(test))

    return mark


def _member(owner: Any, name: str) -> Any:
    """A class's own entry, a property or static method as such; a module's name."""
    return vars(owner)[name]


def _function(found: Any) -> FunctionType:
    function = unwrap(getattr(found, "fget", None) or getattr(found, "__func__", found))
    if not isinstance(function, FunctionType):
        raise TypeError(f"{found!r} is compiled: it takes no plant")
    return function


def _name(plant: Plant | Patch) -> str:
    return str(getattr(plant, "name", None) or getattr(plant, "__name__", plant)).strip("_").replace("_", "-")
