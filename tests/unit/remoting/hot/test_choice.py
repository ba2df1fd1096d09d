"""Which twin is taken, and what is said about it."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from remoting.hot.choice import PURE_VARIABLE, choose


@pytest.fixture(autouse=True)
def _no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PURE_VARIABLE, raising=False)


def room(folder: Path, *, built_s: float | None = None) -> Path:
    """A room of a checkout with one source, and an extension built so many seconds later."""
    (folder / "pyproject.toml").write_text("")
    source = folder / "loops.py"
    source.write_text("")
    if built_s is not None:
        extension = folder / f"loops{EXTENSION_SUFFIXES[0]}"
        extension.write_bytes(b"")
        moment = source.stat().st_mtime + built_s
        os.utime(extension, (moment, moment))
    return folder


def test_compiled_when_it_was_built(tmp_path: Path) -> None:
    """No reason is given for the better one."""
    taken = choose(room(tmp_path, built_s=0), ["loops"], lambda: "fast", lambda: "slow")
    assert (taken.core, taken.name, taken.reason) == ("fast", "compiled", "")


def test_pure_when_it_was_not_built_or_is_outdated(tmp_path: Path) -> None:
    """The reason tells the two apart."""
    taken = choose(room(tmp_path), ["loops"], lambda: "fast", lambda: "slow")
    assert (taken.core, taken.name) == ("slow", "pure")
    assert "was not compiled" in taken.reason
    taken = choose(room(tmp_path, built_s=-5), ["loops"], lambda: "fast", lambda: "slow")
    assert (taken.core, "newer" in taken.reason) == ("slow", True)


def test_an_installed_wheel_is_not_judged_by_the_order_of_its_unpacking(tmp_path: Path) -> None:
    """Also where the environment lies inside somebody's checkout."""
    (tmp_path / "pyproject.toml").write_text("")
    package = tmp_path / "environment" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    loops = room(package, built_s=-5)
    (loops / "pyproject.toml").unlink()
    assert choose(loops, ["loops"], lambda: "fast", lambda: "slow").core == "fast"


def test_pure_when_asked_for_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension that cannot be loaded is no reason to stop."""

    def broken() -> str:
        raise ImportError("built for another Python")

    taken = choose(room(tmp_path, built_s=0), ["loops"], broken, lambda: "slow")
    assert (taken.core, taken.reason) == ("slow", "built for another Python")
    monkeypatch.setenv(PURE_VARIABLE, "1")
    assert choose(tmp_path, ["loops"], lambda: "fast", lambda: "slow").core == "slow"
    monkeypatch.setenv(PURE_VARIABLE, "0")
    assert choose(tmp_path, ["loops"], lambda: "fast", lambda: "slow").core == "fast"
