"""The pure twin: it leaves every row to the careful way, which is plain Python already.

Invariant: an answer of None is always right, the careful way makes the same messages. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.meta.hot import Blob, Starts, Way
    from broker.store.store_message import StoreMessage


def staged(body: bytes, way: Way, hidden: tuple[int, ...]) -> list[StoreMessage] | None:  # noqa: ARG001
    """Leave it to the careful way."""
    return None


def placed(body: bytes, way: Way) -> list[StoreMessage] | None:  # noqa: ARG001
    """Leave it to the careful way."""
    return None


def shown(blob: Blob, starts: Starts, way: Way) -> list[StoreMessage] | None:  # noqa: ARG001
    """Leave it to the careful way."""
    return None


def topics(body: bytes) -> set[bytes] | None:  # noqa: ARG001
    """Leave it to the careful way."""
    return None
