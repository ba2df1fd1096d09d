"""How a connection ends: with a reason, and everyone who asked is told it once.

Invariant: `closing` is set from the beginning of the end, `reason` from its completion; a callback runs once, and one
that fails keeps no other from running. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging

from remoting.transport.contracts import CloseCallback

LOG = logging.getLogger("remoting")


class Ending:
    """The end of one connection, which has not come yet."""

    __slots__ = ("_callbacks", "closing", "reason")

    def __init__(self) -> None:
        self.closing: str | None = None
        """Why it is ending or has ended; None while it is open."""
        self.reason: str | None = None
        """Why it has ended."""
        self._callbacks: list[CloseCallback] = []

    def on_close(self, callback: CloseCallback) -> None:
        """Call `callback(reason)` once when it has ended; next turn if it already has."""
        if self.reason is None:
            self._callbacks.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback, self.reason)

    def finish(self) -> None:
        """It has ended, for the reason that it was closed for: tell everyone."""
        assert self.closing is not None
        self.reason = self.closing
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            run_close_callback(callback, self.reason)


def run_close_callback(callback: CloseCallback, reason: str) -> None:
    """Run one callback; its failure must not keep the others from running."""
    try:
        callback(reason)
    except Exception:
        LOG.exception("a close callback failed")
