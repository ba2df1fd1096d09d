"""Chooses the twin: `core` is the compiled one where it was built from the sources that are here, else the pure one.

Callers say `hot.core.placed...`, so that tests may put the other twin there. LIGHTMQ_PURE=1 chooses the pure one.
Invariant: both twins do the same. Thread rule: chosen once, at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remoting.native.choice import Choice, choose
from remoting.native.contracts import Blob, Way
from remoting.native.reference import images as pure


@dataclass(frozen=True, slots=True)
class Core:
    """Record images to queues by one twin; both answer and refuse in the same words."""

    name: str
    placed: Callable[[bytes, Way], tuple[list[Any], list[tuple[int, int]]]]
    """(images, way) -> (queues of each, (number, where it begins) of those that ask for more than to be stored, or for
    a queue that is not there; theirs are None). Raises RemoteViolation, and what the way's functions raise."""
    topics: Callable[[bytes], set[bytes]]
    """(images) -> the topics they are for. Raises RemoteViolation."""
    hidden: Callable[[bytes], bytes]
    """(images that were checked) -> the same as staged ones."""
    shown: Callable[[Blob, Any], bytes | None]
    """(staged records, where each begins as u32) -> the images they were sent as; None when one is not sound."""


def pure_core() -> Core:
    """Return the pure twin."""
    return Core("pure", pure.placed, pure.topics, pure.hidden, pure.shown)


def compiled_core() -> Core:
    """Return the compiled twin. Raises ImportError where it was not built."""
    from remoting.native.compiled import images as compiled

    return Core("compiled", compiled.placed, compiled.topics, compiled.hidden, compiled.shown)


choice: Choice[Core] = choose(compiled_core, pure_core)
"""Which twin is in use, and why."""
core: Core = choice.core
"""The twin in use: images to queues."""
