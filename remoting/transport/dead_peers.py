"""How soon a dialled connection ends when nothing of the other machine arrives any more.

A machine that lost its power, a switch or a translation of addresses that forgot the connection sends neither an answer
nor a reset. Without a limit TCP repeats what it sent for a quarter of an hour, in intervals that double: after an
outage of 26 s the next attempt comes 25 s later. With it the connection ends, and its owner dials again.
A peer that is merely busy or stopped is not affected: its kernel acknowledges. One that has read nothing for this long,
while more waits to be sent than its window takes, is; its requests have timed out by then.

Source: RFC 5482 (user timeout), tcp(7). Where a system lacks an option (macOS has no user timeout), that part is left
to its defaults. Pure apart from the options it sets; any thread.
"""

from __future__ import annotations

import socket
from typing import Protocol

SILENCE_MS_MAX = 10_000
"""Longest time for which what was sent may be unacknowledged; then the connection ends."""
IDLE_S, PROBE_INTERVAL_S = 10, 5
"""An idle connection is probed after so long, and then so often, until an answer comes or the time above has passed."""


class HasOptions(Protocol):
    """A socket, or what an event loop shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """As `socket.socket.setsockopt` does."""


def end_when_unreachable(connected: HasOptions) -> None:
    """Let the kernel end this connection `SILENCE_MS_MAX` after its peer has ceased to acknowledge."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", PROBE_INTERVAL_S), ("TCP_USER_TIMEOUT", SILENCE_MS_MAX),
    ):  # fmt: skip
        option = getattr(socket, name, None)
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
