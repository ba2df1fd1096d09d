"""What a server sets for its whole process: event loop, garbage collector, C allocator, limit of file descriptors.

Event loop: uvloop where it is installed, asyncio's own otherwise. After start-up the objects that live as long as the
process are frozen out of the collector's sight, and the young threshold is raised: a collection in the middle of a
batch costs every message in it. Invariant: :func:`run` returns only when the loop is closed.

Allocator: glibc takes large buffers from the kernel one by one and gives them back whole, until one such buffer was
freed; from then on it cuts them out of one heap, where what is small and lives long holds what was large and is gone. A
TLS connection of uvloop has a buffer of 256 KB of which it touches a page: apart they cost 24 KB each, in the heap 46.
Invariant: where there is no such allocator nothing happens.

File descriptors: as many as a server needs, or as many as allowed. Invariant: a server that knows the number refuses
connections by a limit of its own, counted and in words, before the kernel refuses it a descriptor in the middle of
something else. Changes the soft limit of this process only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
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


_M_MMAP_THRESHOLD = -3
LARGE_BYTES = 256 * 1024
"""From here on a buffer is the kernel's business; reads and messages of ordinary size stay below it."""


def keep_large_buffers_apart() -> bool:
    """Fix the size from which buffers are mapped; whether the allocator knows such a size."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES))


RESERVE = 512
"""Kept for all that is no connection of a client: log files, the broker, the administration port, files read again."""


def room_for(connections: int) -> int:
    """Raise the soft limit to what this many connections need, as far as that goes; how many there is room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = connections + RESERVE
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # the kernel's own ceiling may be lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return max(1, min(connections, soft - RESERVE if soft > 2 * RESERVE else soft // 2))
