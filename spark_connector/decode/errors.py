"""Why a body did not become columns, for one row or for the query, and which library of a format is missing.

Invariant: a reason fits into one short line and never holds more of a body than a few characters; a missing library is
named with what to install, on which side. Thread rule: any thread.
"""

from __future__ import annotations

import importlib
from typing import Any

from remoting.protocol.errors import LightMQError
from spark_connector.errors import OptionError

REASON_CHARACTERS_MAX = 200
"""Longest reason; the rest is cut."""


class Mismatch(Exception):
    """A value that does not fit its column; `path` grows on the way out."""

    def __init__(self, wanted: str, found: str, path: str = "") -> None:
        super().__init__(wanted, found, path)
        self.wanted = wanted
        self.found = found
        self.path = path

    def within(self, name: str) -> Mismatch:
        """The same, seen from one level further out."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Mismatch(self.wanted, self.found, f"{name}{joint}{self.path}")

    def __str__(self) -> str:
        return shorten(f"{self.path}: {self.wanted} is needed, not {self.found}")


class CorruptBody(LightMQError):
    """A body that does not fit, under `decodeMode` = failfast."""


def shorten(reason: str) -> str:
    """Return the reason in one line of bounded length."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"


PACKAGES = {"google": "protobuf"}
"""Packages that are installed under another name than they are imported."""


def need(module: str, kind: str) -> Any:
    """Import a module for a format; OptionError names the package where it is not installed."""
    top = module.partition(".")[0]
    package = PACKAGES.get(top, top)
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise OptionError(
            f"option 'decode' = {kind} needs the package {package!r} on the driver and on every executor; install it "
            f"with: pip install {package} ({failure})"
        ) from None
