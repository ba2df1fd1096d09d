"""The archive of Java's classes: made by one run, used by the next; shell processes stand for Java."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightmq.demo.java_classes import ClassArchive, class_archive


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))


WRITES_AT_ITS_END = 'cat > /dev/null; echo classes > "$0"'
"""As Java does: its standard input ends, it writes the archive, it ends."""


def session(archive: ClassArchive, script: str) -> SimpleNamespace:
    """A session as far as it is stopped."""
    java = subprocess.Popen(["sh", "-c", script, str(archive.scratch)], stdin=subprocess.PIPE)
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=java))
    return SimpleNamespace(sparkContext=context, stop=lambda: None)


def test_one_run_makes_what_the_next_one_uses(tmp_path: Path) -> None:
    first = class_archive("/usr", tmp_path)
    assert f"-XX:ArchiveClassesAtExit={first.scratch}" in first.options
    (tmp_path / "spark-of-another-java.jsa").write_text("old")
    first.stop(session(first, WRITES_AT_ITS_END))
    second = class_archive("/usr", tmp_path)
    assert second == ClassArchive(first.path)
    assert f"-XX:SharedArchiveFile={first.path}" in second.options
    assert list(tmp_path.iterdir()) == [first.path]
    second.stop(session(second, "exit"))
    assert second.path.read_text() == "classes\n"


def test_a_java_that_wrote_nothing_leaves_none(tmp_path: Path) -> None:
    first = class_archive("/usr", tmp_path)
    first.stop(session(first, "exit 1"))
    assert class_archive("/usr", tmp_path) == first


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"{pid}.part").write_text("half")
    class_archive("/usr", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{os.getpid()}.part"]


def test_where_none_can_be_made_java_starts_as_ever(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", tmp_path / "with blank"):
        assert class_archive("/usr", folder) == ClassArchive()
    assert class_archive(None) == ClassArchive()


def test_a_busy_machine_makes_none_but_uses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = class_archive("/usr", tmp_path).path
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert class_archive("/usr", tmp_path) == ClassArchive()
    assert path is not None
    path.touch()
    assert class_archive("/usr", tmp_path) == ClassArchive(path)


def test_without_an_archive_there_are_no_options() -> None:
    assert ClassArchive().options == ""
