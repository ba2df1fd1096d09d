"""Whether compiled code is used, and why not: decided once for all of `compiled`.

Compiled, unless LIGHTMQ_PURE is set, it was not built, or, in a checkout, a source is newer than what was built from it
(an editable install after an update): a stale extension may disagree with the Python around it. Where a wheel was
unpacked the times of files say only in which order that happened. Thread rule: at import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Generic, TypeVar

CoreT = TypeVar("CoreT")

PURE_VARIABLE = "LIGHTMQ_PURE"
"""Set to anything but 0 it forces the pure twins, at build and at run time."""
PURE, COMPILED = "pure", "compiled"
COMPILED_ROOM = Path(__file__).parent / "compiled"
"""The folder of the extensions."""
LINUX_ONLY = frozenset({"driver"})
"""Modules that make Linux system calls; on other systems the loop's transports do their work."""
REBUILD = "install a C compiler and Python's headers (Debian: gcc, python3-dev), then LightMQ again"
COMPILE_AGAIN = "compile it again with make setup (in an environment of your own: pip install -e .)"
UNSET = f"unset {PURE_VARIABLE}"
OUTDATED = "is newer than what was compiled from it"


@dataclass(frozen=True, slots=True)
class Choice(Generic[CoreT]):
    """A twin, its name (`pure` or `compiled`) and, for the pure one, the reason."""

    core: CoreT
    name: str
    reason: str = ""


@cache
def why_pure() -> str:
    """Why the reference is used throughout, "" when the compiled modules are; computed once per process."""
    if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
        return f"{PURE_VARIABLE} is set"
    return why_unusable(COMPILED_ROOM, compiled_modules())


def compiled_modules(platform: str = sys.platform) -> list[str]:
    """Names of the modules compiled on `platform`: every source in the room except those of another system."""
    names = sorted(path.stem for path in COMPILED_ROOM.glob("*.py") if path.stem != "__init__")
    return [name for name in names if platform == "linux" or name not in LINUX_ONLY]


def choose(compiled: Callable[[], CoreT], pure: Callable[[], CoreT], without: str = "") -> Choice[CoreT]:
    """Return the twin to use and the reason.

    `without`: why the typed modules that the extensions reach into are not in use; "" when they are (see `typed`).
    """
    reason = why_pure() or without
    if reason:
        return Choice(pure(), PURE, reason)
    try:
        return Choice(compiled(), COMPILED)
    except (ImportError, AttributeError) as error:  # built from other sources, even if the file times look right
        return Choice(pure(), PURE, str(error))


def why_unusable(room: Path, modules: Sequence[str]) -> str:
    """Return why the extensions in `room` cannot be used, "" when they can."""
    checkout = is_checkout(room)
    for module in modules:
        built = next((path for suffix in EXTENSION_SUFFIXES if (path := room / f"{module}{suffix}").exists()), None)
        if built is None:
            return f"{room.name}/{module} was not compiled"
        if not checkout:
            continue
        built_at = built.stat().st_mtime
        for suffix in (".py", ".pxd"):
            source = room / f"{module}{suffix}"
            if source.exists() and source.stat().st_mtime > built_at:
                return f"{room.name}/{source.name} {OUTDATED}"
    return ""


def remedy(reasons: Collection[str]) -> str:
    """Return how to get the compiled twin, given the reasons why it is not in use."""
    if any(PURE_VARIABLE in reason for reason in reasons):
        return UNSET
    return COMPILE_AGAIN if any(OUTDATED in reason for reason in reasons) else REBUILD


def is_checkout(room: Path) -> bool:
    """Whether the folder above the topmost package around `room` is a source checkout."""
    top = room
    while (top / "__init__.py").exists():
        top = top.parent
    return (top / "pyproject.toml").exists()
