"""Libraries that only one format needs: asked for when it is used, and named when they are missing.

Invariant: the error says what to install, on which side. Thread rule: any thread.
"""

from __future__ import annotations

import importlib
from typing import Any

from spark_connector.errors import OptionError

EXTRA = "decode"
"""The extra of the distribution that brings them all."""


def need(module: str, kind: str) -> Any:
    """Import a module for a format; OptionError names the extra where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise OptionError(
            f"option 'decode' = {kind} needs the package {module.partition('.')[0]!r} on the driver and on every "
            f"executor: pip install 'lightmq[{EXTRA}]' ({failure})"
        ) from None
