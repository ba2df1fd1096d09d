"""Nothing is installed when everything is there; pip's last words travel with a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightmq.demo import installation
from lightmq.demo.installation import Installation, InstallationFailed
from lightmq.spark_session.programs import JavaNotFound


def test_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all modules importable it is over at once."""
    monkeypatch.setattr(installation, "NEEDED", ("json", "http.client"))
    subject = Installation()
    subject.begin()
    assert subject.done.is_set()
    subject.wait()


def test_a_java_runtime_is_installed_where_none_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all of Spark's modules are there."""
    monkeypatch.setattr(installation, "NEEDED", ("json",))

    def none_here() -> None:
        raise JavaNotFound("none")

    monkeypatch.setattr(installation.programs, "choose_java", none_here)
    assert installation.requirements() == [installation.JAVA_REQUIREMENT]


def test_missing_modules_are_found_without_importing() -> None:
    """A module whose parent is missing is missing too."""
    assert not installation.importable("no_such_package.inside")
    assert installation.importable("json.decoder")


def test_uv_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one of this environment before that of the machine; pip without either."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(installation.shutil, "which", lambda _: None)
    assert installation.installer()[1:4] == ["-m", "pip", "install"]
    monkeypatch.setattr(installation.shutil, "which", lambda _: "/elsewhere/uv")
    assert installation.installer()[:3] == ["/elsewhere/uv", "pip", "install"]
    (tmp_path / "uv").touch()
    assert installation.installer() == [str(tmp_path / "uv"), "pip", "install", "--python", str(tmp_path / "python")]


def test_a_failed_installation_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message holds what the installer printed."""
    installer = tmp_path / "python"
    installer.write_text("#!/bin/sh\necho 'no matching distribution'\nexit 1\n")
    installer.chmod(0o755)
    monkeypatch.setattr(installation, "NEEDED", ("no_such_package",))
    monkeypatch.setattr(installation.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "executable", str(installer))
    subject = Installation()
    subject.begin()
    with pytest.raises(InstallationFailed, match="no matching distribution"):
        subject.wait()
