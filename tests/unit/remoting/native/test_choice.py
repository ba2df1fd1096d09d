"""Which twin is used, and the reason given."""

from __future__ import annotations

import os
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from remoting.native import choice
from remoting.native.choice import PURE_VARIABLE, choose, compiled_modules, why_pure, why_unusable


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PURE_VARIABLE, raising=False)
    monkeypatch.setattr(choice, "why_pure", why_pure.__wrapped__)


def room(folder: Path, *, built_s: float | None = None) -> Path:
    """A room of a checkout with one source, and an extension built this many seconds later."""
    (folder / "pyproject.toml").write_text("")
    source = folder / "loops.py"
    source.write_text("")
    if built_s is not None:
        extension = folder / f"loops{EXTENSION_SUFFIXES[0]}"
        extension.write_bytes(b"")
        moment = source.stat().st_mtime + built_s
        os.utime(extension, (moment, moment))
    return folder


def test_usable_when_it_was_built(tmp_path: Path) -> None:
    """No reason is given for the better one."""
    assert why_unusable(room(tmp_path, built_s=0), ["loops"]) == ""


def test_unusable_when_it_was_not_built_or_is_outdated(tmp_path: Path) -> None:
    """The reason distinguishes the two."""
    assert "was not compiled" in why_unusable(room(tmp_path), ["loops"])
    assert "is newer than" in why_unusable(room(tmp_path, built_s=-5), ["loops"])


def test_an_installed_wheel_is_not_judged_by_the_order_of_its_unpacking(tmp_path: Path) -> None:
    """Also where the environment is inside a checkout."""
    (tmp_path / "pyproject.toml").write_text("")
    package = tmp_path / "environment" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    loops = room(package, built_s=-5)
    (loops / "pyproject.toml").unlink()
    assert why_unusable(loops, ["loops"]) == ""


def test_one_decision_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One module that is missing or old, or the user's choice, and the reference is used everywhere."""
    monkeypatch.setattr(choice, "COMPILED_ROOM", room(tmp_path, built_s=0))
    taken = choose(lambda: "fast", lambda: "slow")
    assert (taken.core, taken.name, taken.reason) == ("fast", "compiled", "")
    assert choose(lambda: "fast", lambda: "slow", "a class below is not compiled").core == "slow"
    (tmp_path / "other.py").write_text("")
    taken = choose(lambda: "fast", lambda: "slow")
    assert (taken.core, taken.name, "other was not compiled" in taken.reason) == ("slow", "pure", True)
    (tmp_path / "other.py").unlink()
    monkeypatch.setenv(PURE_VARIABLE, "1")
    assert choose(lambda: "fast", lambda: "slow").reason == f"{PURE_VARIABLE} is set"
    monkeypatch.setenv(PURE_VARIABLE, "0")
    assert choose(lambda: "fast", lambda: "slow").core == "fast"


def test_pure_when_it_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension that is broken is no reason to stop."""

    def broken() -> str:
        raise ImportError("built for another Python")

    monkeypatch.setattr(choice, "COMPILED_ROOM", room(tmp_path, built_s=0))
    taken = choose(broken, lambda: "slow")
    assert (taken.core, taken.reason) == ("slow", "built for another Python")


def test_what_is_built_is_what_is_loaded() -> None:
    """The build hook's lists and the folder agree; what calls Linux is not missed elsewhere."""
    pyproject = Path(__file__).resolve().parents[4] / "pyproject.toml"
    hook = tomllib.loads(pyproject.read_text())["tool"]["hatch"]["build"]["hooks"]["custom"]
    listed = {Path(name).stem for name in hook["modules"] + hook["linux"] if "native/compiled" in name}
    assert listed == set(compiled_modules("linux"))
    assert set(compiled_modules("linux")) - set(compiled_modules("darwin")) == {
        Path(name).stem for name in hook["linux"]
    }
