"""Chooses the twin: `core` is the compiled one where it was built from the sources that are here, else the pure one.

Callers say `hot.core.staged...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins lead to the same messages. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.store_message import StoreMessage
from remoting.native.choice import Choice, choose
from remoting.native.reference import rows as pure_rows

Blob = bytes | bytearray | memoryview
Starts = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Way:
    """Where messages go: what the placement knows, as the hot loops want it."""

    queues: Mapping[bytes, tuple[int, ...]]
    """MQTT topic -> queue ids, those at hand; a dict."""
    missed: Callable[[bytes], tuple[int, ...]]
    """The same for topics not in there; raises Refused."""
    writable: Callable[[bytes], tuple[tuple[tuple[int, ...], ...], int]]
    """RocketMQ topic -> (its queues by number, how many messages took turns); Refused when it takes no writes."""
    turned: Callable[[bytes, int], None]
    """Told how many more messages took turns in a topic's queues."""
    body_bytes_max: int
    properties_bytes_max: int


@dataclass(frozen=True, slots=True)
class Core:
    """One twin; an answer of None says: take the careful way, nothing has changed that it would not change."""

    name: str
    staged: Callable[[bytes, Way, tuple[int, ...]], list[StoreMessage] | None]
    """(body of STAGE, way, hidden queue) -> messages for that queue."""
    placed: Callable[[bytes, Way], list[StoreMessage] | None]
    """(body of APPEND_MANY, way) -> messages with their queues."""
    shown: Callable[[Blob, Any, Way], list[StoreMessage] | None]
    """(staged records, where each begins as u32, way) -> the messages they were sent as, with their queues."""
    topics: Callable[[bytes], set[bytes] | None]
    """(body of STAGE or APPEND_MANY) -> the topics it is for."""


def pure_core() -> Core:
    """Return the pure twin."""
    return Core("pure", pure_rows.staged, pure_rows.placed, pure_rows.shown, pure_rows.topics)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import rows as compiled_rows

    return Core("compiled", compiled_rows.staged, compiled_rows.placed, compiled_rows.shown, compiled_rows.topics)


choice: Choice[Core] = choose(compiled_core, pure_core)
"""Which twin is in use, and why."""
core: Core = choice.core
"""The compiled twin: rows of sinks and appends to store messages."""
