"""Typed modules: ordinary Python whose classes become compiled ones with typed fields by a `.pxd` beside them.

    session.py        the source, complete and correct by itself: what runs where nothing was compiled
    session.pxd       which of its classes become extension types, and the types of their fields and methods
    session.*.so      what both became; Python prefers it to the source by itself

So there is nothing to choose but when the extensions must *not* be taken: LIGHTMQ_PURE is set, one of them was not
built, or, in a checkout, one is older than a source. Typed classes know each other's layout, therefore all of a package
are taken or none, and none as well when a package below (`upon`) has none.
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
        """Which twin is in use: `compiled` or `pure`."""
        return PURE if self.reason else COMPILED


class Sources:
    """Finds the sources of modules, wherever an extension lies beside them."""

    def __init__(self, places: dict[str, Path]) -> None:
        """`places`: full name of a module -> its source."""
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """What the import system asks; None for modules it shall find by itself."""
        place = self._places.get(name)
        return None if place is None else spec_from_file_location(name, place)


def typed(folder: Path, modules: Sequence[str], upon: Sequence[TypedModules] = ()) -> TypedModules:
    """Decide for the package in `folder`, and see to it that its sources are found when the extensions must not be."""
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
    """Why the extensions cannot be used. A layout reaches beyond its module: the youngest source counts for all."""
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
