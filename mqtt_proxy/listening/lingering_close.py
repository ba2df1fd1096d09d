"""Closing a socket whose client may still be sending, without taking back the last words.

A socket that is closed with bytes unread answers them with a reset, and a reset can overtake the DISCONNECT that says
what was wrong. So after a violation our side is ended first, and what still comes is read and thrown away until the
client has ended its side too, or `FAREWELL_S` have passed.
Invariant: nothing that comes after the last words is looked at; a client that goes on sending is cut in time.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

CLOSE_GRACE_S = 2.0
"""How long a closing connection may take to accept its last bytes; then it is cut."""

FAREWELL_S = 2.0
"""How long a client may go on sending after it was told why it has to leave."""


def part(wire: Any, loop: asyncio.AbstractEventLoop, *, explained: bool) -> None:
    """Close a wire once its output is out; `explained`: the client has been told why, so let it end its side first, if
    the wire can end one side alone.
    """
    can_write_eof = getattr(wire, "can_write_eof", None)
    if explained and can_write_eof is not None and can_write_eof():
        wire.write_eof()
        if not wire.is_reading():
            wire.resume_reading()
        loop.call_later(FAREWELL_S, wire.abort)
        return
    wire.close()
    if wire.get_write_buffer_size():
        loop.call_later(CLOSE_GRACE_S, wire.abort)
