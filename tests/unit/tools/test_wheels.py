"""Which wheels count, and what is said about those that could not be built."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("wheels_under_test", ROOT / "tools" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.bootstrap, "make_environment", lambda: None)
    monkeypatch.setattr(module.bootstrap, "uv_command", lambda: ["uv", "pip", "install"])
    return module


def test_what_is_supported_is_what_is_declared(wheels: ModuleType) -> None:
    """By the package, and for the machines that build for other processors."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["requires-python"] == ">=3.11,<3.14"
    chosen = declared["tool"]["cibuildwheel"]
    assert chosen["build"] == [f"cp{version.replace('.', '')}-manylinux_*" for version in wheels.SUPPORTED]
    assert {"x86_64", "aarch64"} == set(chosen["linux"]["archs"])


def test_the_baseline_is_kept(wheels: ModuleType) -> None:
    """The oldest system that the name promises counts."""
    wheels.check_baseline("lightmq-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    wheels.check_baseline("lightmq-1-cp311-cp311-macosx_11_0_arm64.whl")
    with pytest.raises(wheels.NotBuilt, match="younger"):
        wheels.check_baseline("lightmq-1-cp311-cp311-manylinux_2_36_x86_64.whl")


def test_one_that_fails_does_not_keep_the_others(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named with the reason, and the command fails."""

    def build(_uv: str, version: str, out: Path) -> Path:
        if version == "3.12":
            raise wheels.NotBuilt("no such interpreter")
        return out / version

    monkeypatch.setattr(wheels, "build", build)
    assert wheels.main(["--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["CPython 3.11", "CPython 3.13"]
    assert "3.12: not built: no such interpreter" in said.err
    assert wheels.main(["--out", str(tmp_path), "--python", "3.13"]) == 0


def test_a_wheel_without_compiled_code_is_none(
    wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The build hook is content without a compiler; who asks for wheels is not."""

    def run(*command: object) -> None:
        folder = Path(str(command[command.index("--out-dir") + 1]))
        (folder / "lightmq-1-py3-none-any.whl").touch()

    monkeypatch.setattr(wheels, "run", run)
    with pytest.raises(wheels.NotBuilt, match="not compiled"):
        wheels.build("uv", f"{sys.version_info.major}.{sys.version_info.minor}", tmp_path)


def test_interpreters_of_pyenv_are_found(wheels: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The newest release of a version; anything else is left to uv."""
    for name in ("3.12.4", "3.12.11", "3.12-dev", "3.12.9rc1", "3.13.0"):
        binary = tmp_path / "versions" / name / "bin" / "python"
        binary.parent.mkdir(parents=True)
        binary.touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert wheels.interpreter("3.12") == str(tmp_path / "versions" / "3.12.11" / "bin" / "python")
    assert wheels.interpreter("3.11") == "3.11"
