"""Pandas, imported when it is first used: a second and a half of CPU that help texts and Spark's driver do without.

Invariant: to a type checker, and in functions that Spark sends to its workers, the name is the module itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["pd"]


class Later:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self._name,)


if TYPE_CHECKING:
    import pandas as pd
else:
    pd = Later("pandas")
