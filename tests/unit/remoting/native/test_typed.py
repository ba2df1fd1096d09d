"""When the extensions of typed modules are used, and that sources are used when they must not be."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import broker
import grpc_proxy
import mqtt_proxy
import remoting
from remoting.native.choice import PURE_VARIABLE
from remoting.native.typed import Sources, TypedModules, typed

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = (remoting, broker, grpc_proxy, mqtt_proxy)


@pytest.fixture(autouse=True)
def _no_wish_and_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PURE_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def package(folder: Path, *, built_s: float | None = None) -> Path:
    """A package of a checkout with a typed module in a room, and its extension, built this many seconds later."""
    (folder / "pyproject.toml").write_text("")
    top = folder / "part"
    (top / "room").mkdir(parents=True)
    (top / "__init__.py").write_text("")
    for suffix in (".py", ".pxd"):
        (top / "room" / f"thing{suffix}").write_text("")
    if built_s is not None:
        extension = top / "room" / f"thing{EXTENSION_SUFFIXES[0]}"
        extension.write_bytes(b"")
        moment = (top / "room" / "thing.py").stat().st_mtime + built_s
        os.utime(extension, (moment, moment))
    return top


def test_extensions_are_used_when_they_exist(tmp_path: Path) -> None:
    """The import system is left alone."""
    before = list(sys.meta_path)
    found = typed(package(tmp_path, built_s=5), ["room.thing"])
    assert found == TypedModules("part", ("room.thing",), "")
    assert (found.name, sys.meta_path) == ("compiled", before)


def test_sources_are_found_when_one_was_not_built(tmp_path: Path) -> None:
    """The reason names the module; only typed modules are checked."""
    top = package(tmp_path)
    found = typed(top, ["room.thing"])
    assert (found.name, found.reason) == ("pure", "part.room.thing was not compiled")
    finder = sys.meta_path[0]
    assert isinstance(finder, Sources)
    spec = finder.find_spec("part.room.thing")
    assert spec is not None
    assert spec.origin == str(top / "room" / "thing.py")
    assert finder.find_spec("part.room.other") is None


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def test_a_newer_source_counts_for_all_of_the_package(tmp_path: Path, suffix: str) -> None:
    """Also a declaration: classes know each other's layout from there."""
    top = package(tmp_path, built_s=5)
    later = top / "room" / f"other{suffix}"
    for one in {".py", suffix}:
        (top / "room" / f"other{one}").write_text("")
    (top / "room" / f"other{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    moment = (top / "room" / f"other{EXTENSION_SUFFIXES[0]}").stat().st_mtime + 60
    os.utime(later, (moment, moment))
    found = typed(top, ["room.thing", "room.other"])
    assert found.reason == f"part/room/other{suffix} is newer than what was compiled from it"


def test_an_installed_wheel_is_not_judged_by_the_order_of_its_unpacking(tmp_path: Path) -> None:
    """Where there is no pyproject.toml above the package, the times of files say nothing."""
    top = package(tmp_path, built_s=-60)
    (tmp_path / "pyproject.toml").unlink()
    assert typed(top, ["room.thing"]).reason == ""


def test_pure_on_request_or_when_a_package_below_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled class cannot derive from one that is not."""
    top = package(tmp_path, built_s=5)
    assert typed(top, ["room.thing"], upon=[TypedModules("below", (), "why")]).reason == "why"
    assert typed(top, ["room.thing"], upon=[TypedModules("below", (), "")]).reason == ""
    monkeypatch.setenv(PURE_VARIABLE, "1")
    assert typed(top, ["room.thing"]).reason == f"{PURE_VARIABLE} is set"


def test_what_is_built_is_what_the_packages_name() -> None:
    """The build hook's list and the packages' are one; a `.pxd` beside a module that is in neither would do nothing."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]["custom"]
    named = {f"{one.TYPED.package}/{module.replace('.', '/')}.py" for one in PACKAGES for module in one.TYPED.modules}
    assert set(hook["typed"]) == named
    declared = {
        path.relative_to(ROOT).with_suffix(".py").as_posix()
        for one in PACKAGES
        for path in (ROOT / one.TYPED.package).rglob("*.pxd")
        if "native" not in path.parts
    }
    assert declared <= named


SAY = """
import mqtt_proxy
from mqtt_proxy.mqtt.session import in_flight
print(in_flight.__file__.rpartition(".")[2], mqtt_proxy.TYPED.name)
"""


def test_a_process_uses_one_twin_or_the_other() -> None:
    """What the import system really loads."""
    said = {}
    for wish in ("0", "1"):
        environment = {**os.environ, PURE_VARIABLE: wish}
        said[wish] = subprocess.run(
            [sys.executable, "-c", SAY], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
    assert said["1"] == ["py", "pure"]
    assert said["0"] in (["so", "compiled"], ["py", "pure"])
