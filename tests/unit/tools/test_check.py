"""The quick suite's parts, and what is checked before them."""

from __future__ import annotations

import importlib
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


def marks(part: list[str]) -> str:
    """The expression of `-m`."""
    return part[part.index("-m") + 1]


def test_the_parts_are_the_whole_suite(check: Any) -> None:
    """What one leaves out, by folder or by mark, exactly one other names; every folder that is named is there."""
    parts = dict(check.PARTS)
    modules = parts.pop("modules")
    folders = [word for part in parts.values() for word in part if word.startswith("tests/")]
    assert {f"--ignore={folder}" for folder in folders} == {word for word in modules if word.startswith("--ignore")}
    assert "tests" in modules
    assert all((ROOT / folder).is_dir() for folder in folders)
    for folder in set(folders):
        selected = [marks(part) for part in parts.values() if folder in part]
        if len(selected) == 1:
            assert selected == [check.QUICK_MARKS]
        else:
            mark = selected[0].removeprefix(f"{check.QUICK_MARKS} and ")
            assert selected == [f"{check.QUICK_MARKS} and {mark}", f"{check.QUICK_MARKS} and not {mark}"]


@pytest.mark.parametrize("failing", ["", "spark", "drivers", "servers", "modules", "alone"])
def test_a_failure_in_any_part_counts(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failing: str
) -> None:
    """Whichever part it is in, and although it would pass the next time: no test is run twice."""
    script = tmp_path / "runs_as_pytest.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "ran, fails = Path(sys.argv[-2]), sys.argv[-1] == 'fails'\nagain = ran.exists()\nran.touch()\n"
        "print('said by', ran.stem)\nraise SystemExit(fails and not again)\n"
    )
    for part in list(check.PARTS):
        verdict = "fails" if part == failing else "passes"
        monkeypatch.setitem(check.PARTS, part, [str(tmp_path / f"{part}.ran"), verdict])
    monkeypatch.setattr(check, "pytest_command", lambda arguments: [sys.executable, str(script), *arguments])
    assert check.run_tests([]) == bool(failing)
    assert len(list(tmp_path.glob("*.ran"))) == len(check.PARTS)
    said = capfd.readouterr().out
    assert all(f"said by {part}" in said for part in check.PARTS), "also what ran beside others"
    table = [line.split()[:2] for line in said.splitlines()[-len(check.PARTS) :]]
    assert table == [[part, "FAILED" if part == failing else "ok"] for part in check.PARTS]


@pytest.mark.parametrize("arguments", [[], ["tests/unit"]])
def test_bytecode_is_kept_whatever_the_caller_wants(
    check: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Beside the environment, not in the tree; in every part, and in a run of the caller's own."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    elsewhere = f"not sys.pycache_prefix.startswith({str(check.bootstrap.ENVIRONMENT)!r})"
    code = f"import sys; raise SystemExit(sys.dont_write_bytecode or {elsewhere})"
    monkeypatch.setattr(check, "pytest_command", lambda _arguments: [sys.executable, "-c", code])
    assert check.run_tests(arguments) == 0


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
