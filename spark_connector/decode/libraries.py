"""Libraries that only one format needs: asked for when it is used, and named when they are missing.

Invariant: the error says what to install, on which side. Thread rule: any thread.
"""

from __future__ import annotations

import importlib
from typing import Any

from spark_connector.errors import OptionError

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
