"""Typed modules: ordinary Python whose classes are compiled with the field types of a `.pxd` beside them.

    session.py        the source, complete by itself: what runs if nothing was compiled
    session.pxd       which of its classes become extension types, and the types of their fields and methods
    session.*.so      the extension built from both; Python prefers it to the source

Python prefers the extensions by itself; the only decision is when *not* to use them: LIGHTMQ_PURE is set, one of them
was not built, or, in a checkout, one is older than a source. Typed classes depend on each other's layout, so a package
uses all of its extensions or none, and none when a package below (`upon`) uses none.
Invariant: decided once, by the package's `__init__`, before any of its modules is imported. Thread rule: at import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

from remoting.native.choice import COMPILED, PURE, PURE_VARIABLE, is_checkout


@dataclass(frozen=True, slots=True)
class TypedModules:
    """The typed modules of one package, dotted below it, and why their sources are in use, "" when they are not."""

    package: str
    modules: tuple[str, ...]
    reason: str

    @property
    def name(self) -> str:
        """The twin in use: `compiled` or `pure`."""
        return PURE if self.reason else COMPILED


class Sources:
    """An import finder that takes the sources of modules instead of the extensions beside them."""

    def __init__(self, places: dict[str, Path]) -> None:
        """`places`: full name of a module -> its source."""
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of a module of these places; None leaves it to the other finders."""
        place = self._places.get(name)
        return None if place is None else spec_from_file_location(name, place)


def typed(folder: Path, modules: Sequence[str], upon: Sequence[TypedModules] = ()) -> TypedModules:
    """Decide for the package in `folder`, and install a finder of its sources if the extensions must not be used."""
    package = folder.name
    reason = _why_not(folder, modules, upon)
    if reason:
        places = {f"{package}.{module}": _place(folder, module, ".py") for module in modules}
        sys.meta_path.insert(0, Sources(places))
    return TypedModules(package, tuple(modules), reason)


def _why_not(folder: Path, modules: Sequence[str], upon: Sequence[TypedModules]) -> str:
    if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
        return f"{PURE_VARIABLE} is set"
    for below in upon:
        if below.reason:
            return below.reason
    return _why_unusable(folder, modules)


def _why_unusable(folder: Path, modules: Sequence[str]) -> str:
    """Return why the extensions cannot be used. Layouts span modules, so the newest source counts for all of them."""
    built_at: list[float] = []
    for module in modules:
        built = next((at for suffix in EXTENSION_SUFFIXES if (at := _place(folder, module, suffix)).exists()), None)
        if built is None:
            return f"{folder.name}.{module} was not compiled"
        built_at.append(built.stat().st_mtime)
    if built_at and is_checkout(folder):
        oldest = min(built_at)
        for source in _sources(folder, modules):
            if source.stat().st_mtime > oldest:
                return f"{source.relative_to(folder.parent)} is newer than what was compiled from it"
    return ""


def _sources(folder: Path, modules: Sequence[str]) -> Iterator[Path]:
    for module in modules:
        for suffix in (".py", ".pxd"):
            source = _place(folder, module, suffix)
            if source.exists():
                yield source


def _place(folder: Path, module: str, suffix: str) -> Path:
    return folder / f"{module.replace('.', '/')}{suffix}"
