"""The quick suite's second chance: for few, named tests, and never for suites that look for lost messages."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("check")
    sys.modules.pop("check", None)


def failures(tmp_path: Path, names: list[str]) -> Path:
    path = tmp_path / "lastfailed"
    path.write_text(json.dumps(dict.fromkeys(names, True)))
    return path


def test_a_few_failures_are_run_again(check: Any, tmp_path: Path) -> None:
    """In a fixed order, as pytest names them."""
    path = failures(tmp_path, ["tests/unit/b.py::two", "tests/processes/a.py::one[x]"])
    assert check.repeatable(check.failures(path)) == ["tests/processes/a.py::one[x]", "tests/unit/b.py::two"]


@pytest.mark.parametrize("room", ["fuzz", "sim", "property", "chaos"])
def test_a_loss_found_by_chance_is_never_run_away_from(check: Any, room: str) -> None:
    """One such failure forbids the second run altogether."""
    assert check.repeatable([f"tests/{room}/a.py::one", "tests/unit/b.py::two"]) == []


def test_many_failures_and_broken_files_stand(check: Any, tmp_path: Path) -> None:
    """They are no matter of a busy machine."""
    assert check.repeatable([f"tests/unit/a.py::{number}" for number in range(5)]) == []
    assert check.repeatable(["tests/unit/a.py"]) == []
    assert check.failures(tmp_path / "none") == []


def test_the_parts_are_the_whole_suite(check: Any) -> None:
    """What one runs the others leave out, and every folder that is named is there."""
    named = [*check.PARTS["servers"], *check.PARTS["alone"]]
    assert check.PARTS["modules"] == ["tests", *(f"--ignore={folder}" for folder in named)]
    assert all((ROOT / folder).is_dir() for folder in named)


@pytest.mark.parametrize("failing", ["", "servers", "modules", "alone"])
def test_a_failure_in_any_part_counts(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """With its name, whichever part it is in."""
    for part in list(check.PARTS):
        (tmp_path / f"test_{part}.py").write_text(f"def test_it():\n    assert {part != failing}\n")
        monkeypatch.setitem(check.PARTS, part, ["-p", "no:randomly", str(tmp_path / f"test_{part}.py")])
    monkeypatch.setattr(check, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(check, "BIN", Path(sys.executable).parent)
    status, failed = check.run_parts()
    assert status == bool(failing)
    assert [name.rpartition("/")[2] for name in failed] == [f"test_{failing}.py::test_it"] * bool(failing)


def test_what_is_not_compiled_is_found_where_it_could_be(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that Cython refuses would otherwise only make everything several times slower."""
    monkeypatch.setattr(check.shutil, "which", lambda _name: None)
    assert check.checks() == check.STATIC
    monkeypatch.setattr(check.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(check.sysconfig, "get_paths", lambda: {"include": str(ROOT / "none")})
    assert check.checks() == check.STATIC
    monkeypatch.setattr(check.sysconfig, "get_paths", lambda: {"include": str(ROOT / "none")})
    monkeypatch.setattr(check.Path, "exists", lambda _path: True)
    monkeypatch.setenv("LIGHTMQ_PURE", "1")
    assert check.checks() == check.STATIC
    monkeypatch.setenv("LIGHTMQ_PURE", "0")
    assert set(check.checks()) - set(check.STATIC) == {"compiled"}


def test_the_check_of_what_is_compiled_says_why_not() -> None:
    """Its status is 0 exactly when no package gives a reason."""
    pure = {**os.environ, "LIGHTMQ_PURE": "1", "PYTHONPATH": str(ROOT)}
    code = (ROOT / "tools/check.py").read_text().partition('COMPILED = """')[2].partition('"""')[0]
    found = subprocess.run([sys.executable, "-c", code], env=pure, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "LIGHTMQ_PURE" in found.stderr
    blank = code.replace("each.TYPED.reason", "''")
    found = subprocess.run([sys.executable, "-c", blank], env=pure, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
