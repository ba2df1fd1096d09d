"""File descriptors: as many as a server needs, or how many there are.

Invariant: a server that is told the answer refuses connections by a limit of its own, counted and in words, before the
kernel refuses it a descriptor in the middle of something else. Changes the soft limit of this process only.
"""

from __future__ import annotations

import contextlib
import resource

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
