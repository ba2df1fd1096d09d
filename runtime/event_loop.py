"""The event loop of a server process: which one, and how the garbage collector behaves beside it.

uvloop where it is installed, asyncio's own otherwise. After start-up the objects that live as long as the process are
frozen out of the collector's sight, and the young threshold is raised: a collection in the middle of a batch costs
every message in it. Invariant: :func:`run` returns only when the loop is closed.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from remoting.protocol.errors import LocalMisuse

T = TypeVar("T")

YOUNG_OBJECTS_MAX = 50_000
"""Net allocations between two collections of the youngest generation (CPython's default is 700 to 2,000)."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The constructor of the fastest loop that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def loop_name() -> str:
    """``uvloop`` or ``asyncio``: what :func:`run` would use."""
    return "asyncio" if loop_factory() is asyncio.new_event_loop else "uvloop"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end in a new loop and close the loop."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def refuse_optimised() -> None:
    """Raise LocalMisuse under ``python -O``: our asserts guard the data, a server without them is another program."""
    if not __debug__:
        raise LocalMisuse("python -O switches off the checks that guard the data; start without -O / PYTHONOPTIMIZE")


def settle_garbage() -> None:
    """Call once when everything is started: collect, freeze what is left, make collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 50)
