"""Counts of concepts: more than is allowed fails, and so does a bound that is no longer reached."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tree import ROOT

MODULE = '''"""A room. Invariant: one. Invariant: two."""
from typing import Protocol
class Face(Protocol): ...
class Room:
    def take(self, peer): self._gate.authorize(peer); return self._dial("b")
    def serve(self, loop): return loop.create_server(self)
'''
TEST = "def test(one, monkeypatch):\n    monkeypatch.setattr(one, 'x', 1)\n    assert one._x == one._x + self._y\n"


@pytest.fixture
def concepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, for a tree with one module and one test."""
    spec = importlib.util.spec_from_file_location("concepts", ROOT / "tools" / "concepts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "concepts", module)
    spec.loader.exec_module(module)
    for folder, name, text in (
        ("broker", "room.py", MODULE),
        ("broker", "room.pxd", "x\ny\n"),
        ("tests", "t.py", TEST),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "TABLE", tmp_path / "concepts.toml")
    return module


def test_each_kind_is_counted(concepts: Any) -> None:
    assert concepts.counts() == {
        "lines": 6, "lines.broker": 6, "classes": 2, "protocols": 1, "connecting_files": 1, "accepting_files": 1,
        "authorize_calls": 1, "pxd_lines": 2, "double_docstrings": 1, "private_names_in_tests": 1, "patched": 1,
        "test_lines": 3,
    }  # fmt: skip


def test_more_than_allowed_and_less_than_was_won_are_complaints(concepts: Any) -> None:
    complaints = concepts.complaints
    assert complaints({"classes": 100}, {"classes": 100}) == []
    assert complaints({"classes": 99}, {"classes": 100}) == []
    assert "raise the bound and say why" in complaints({"classes": 101}, {"classes": 100})[0]
    assert "keep what was won" in complaints({"classes": 90}, {"classes": 100})[0]
    assert "has no bound" in complaints({"classes": 1}, {})[0]
    assert "is not counted" in complaints({}, {"classes": 1})[0]


def test_bounds_are_lowered_and_never_raised(concepts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = concepts.counts() | {"classes": 50, "lines": 1}
    text = "".join(f'"{name}" = {number}\n' for name, number in bounds.items())
    concepts.TABLE.write_text(f"# why\n[goals]\nclasses = 1\n[bounds]\n{text}")
    assert concepts.main([]) == 1
    assert concepts.main(["--tighten"]) == 1, "a bound that is passed is raised by hand"
    assert "lines: 6, 1 allowed" in capsys.readouterr().out
    tightened, goals = concepts.load()
    assert (tightened["classes"], tightened["lines"], goals) == (2, 1, {"classes": 1})
    assert concepts.TABLE.read_text().startswith("# why\n")
