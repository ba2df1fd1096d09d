"""Telling the C allocator how a server uses memory.

glibc takes large buffers from the kernel one by one and gives them back whole, until one such buffer was freed; from
then on it cuts them out of one heap, where what is small and lives long holds what was large and is gone. A TLS
connection of uvloop has a buffer of 256 KB of which it touches a page: apart they cost 24 KB each, in the heap 46.
Invariant: where there is no such allocator nothing happens.
"""

from __future__ import annotations

import ctypes

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
