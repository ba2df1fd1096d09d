"""Unused names are found, excused ones are not; an excuse that is no longer needed is found too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.tree import ROOT

SETTINGS = """
[tool.vulture]
paths = ["product"]
min_confidence = 60
ignore_names = ["on_*"]
"""
MODULE = """
from json import dumps
LIMIT = 3
USED = 4
class Store:
    field = 1
    def on_close(self): return USED
    def lost(self): return 2
Store()
"""


def dead_code():
    spec = importlib.util.spec_from_file_location("dead_code", ROOT / "tools" / "dead_code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / "product").mkdir()
    module = tmp_path / "product" / "store.py"
    module.write_text(MODULE)
    return module


def test_what_nobody_uses_is_named(product: Path) -> None:
    """Imports, constants of modules and methods are; fields, which a codec may read, are not."""
    found = "\n".join(dead_code().findings())
    assert [name for name in ("dumps", "LIMIT", "lost", "USED", "field", "on_close") if f"'{name}'" in found] == [
        "dumps", "LIMIT", "lost",
    ]  # fmt: skip


def test_an_exception_that_excuses_nothing_is_named(product: Path) -> None:
    product.write_text(MODULE.replace("def on_close", "def lost_too"))
    assert any("'on_*' excuses nothing" in line for line in dead_code().findings())


def test_the_exit_status_says_whether_there_is_any(product: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dead_code().main() == 1
    product.write_text("def on_close(): pass\n")
    assert (dead_code().main(), capsys.readouterr().out.splitlines()[-1]) == (0, "")
