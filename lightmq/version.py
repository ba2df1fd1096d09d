"""The version of this distribution, readable without importing anything else.

Invariant: equal to the one in ``pyproject.toml`` (a test compares them); reading the installed metadata instead would
cost every start of the command line more than the rest of it.
"""

from __future__ import annotations

VERSION = "0.1.0"
