"""The compilation beside a run: asked for, told about once, ended with everything that it started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lightmq.demo.installation import NICENESS, VARIABLE, Compilation


def compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Compilation:
    """One whose script is this text."""
    path = tmp_path / "script.py"
    path.write_text(script)
    monkeypatch.setenv(VARIABLE, str(path))
    subject = Compilation(tmp_path / "compilation.log")
    subject.begin()
    return subject


def finished(subject: Compilation) -> list[str]:
    """What it says once it has ended."""
    notes: list[str] = []
    deadline = time.monotonic() + 60
    while not notes:
        subject.tell(notes.append)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    subject.tell(notes.append)
    return notes


def test_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs, nothing is said."""
    monkeypatch.delenv(VARIABLE, raising=False)
    subject = Compilation(tmp_path / "log")
    subject.begin()
    subject.tell(lambda text: pytest.fail(text))
    subject.stop()
    assert not subject.running
    assert not (tmp_path / "log").exists()


def test_it_runs_at_the_lowest_priority_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of the demo do not ask for it again."""
    subject = compilation(tmp_path, monkeypatch, "import os, sys; print(os.nice(0), sys.argv[1:])")
    assert VARIABLE not in os.environ
    assert finished(subject) == ["the compiled core is ready; the next start uses it"]
    assert (tmp_path / "compilation.log").read_text() == f"{max(NICENESS, os.nice(0))} ['compiled']\n"


def test_a_failure_names_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo goes on in pure Python."""
    (note,) = finished(compilation(tmp_path, monkeypatch, "raise SystemExit(1)"))
    assert "compilation.log" in note


def test_stopping_it_ends_its_children_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that goes on alone would write into the tree behind everybody's back."""
    child = "['sh', '-c', 'trap \"\" INT; sleep 300']"
    script = f"import subprocess, time\nprint(subprocess.Popen({child}).pid, flush=True)\ntime.sleep(300)\n"
    subject = compilation(tmp_path, monkeypatch, script)
    log, deadline = tmp_path / "compilation.log", time.monotonic() + 60
    while not log.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    grandchild = int(log.read_text())
    subject.stop()
    assert not subject.running
    deadline = time.monotonic() + 20
    while Path(f"/proc/{grandchild}").exists() and "State:\tZ" not in Path(f"/proc/{grandchild}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
