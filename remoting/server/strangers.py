"""Connections whose peers have proved no key and must: those that say nothing are closed, so that they hold no slot.

    nothing said yet       a whole request within UNPROVEN_FIRST_S of the connection, TLS included
    said something         the next one within `unproven_idle_ms`; a frame that has begun is the matter of `intake`
    proved, or trusted     not here any more: idle for as long as it likes

Invariant: who is here was not proved when it was looked at last. Pure: time is given. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

UNPROVEN_FIRST_S = 10.0
"""Longest time from a connection without a proved key to its first whole request."""
SILENT = "silent"
"""Why such a connection is closed, as the metrics name it."""


class Stranger(Protocol):
    """A connection as it is looked at here."""

    @property
    def proved(self) -> bool:
        """Whether its requests carry a proof, or need none."""
        ...

    @property
    def begun(self) -> bool:
        """Whether a frame of it has begun and not ended, so that another time runs."""
        ...

    @property
    def frames_in(self) -> int:
        """Whole requests so far."""
        ...


class Strangers:
    """Those of one server."""

    def __init__(self, idle_ms: int) -> None:
        self.closed = 0
        self._idle_s = idle_ms / 1_000
        self._heard: dict[Stranger, tuple[float, int]] = {}
        """When something was heard of it last, and how many requests it had made then."""

    def __len__(self) -> int:
        return len(self._heard)

    def came(self, stranger: Stranger, now_s: float) -> None:
        """A connection was made; it counts unless it needs no proof."""
        if not stranger.proved:
            self._heard[stranger] = now_s, 0

    def forget(self, stranger: Stranger) -> None:
        """Its connection has ended; it is not watched any more."""
        self._heard.pop(stranger, None)

    def overdue(self, now_s: float) -> Iterator[Stranger]:
        """Yield and count who has said nothing for too long; call it now and then."""
        for stranger, (heard_s, frames) in list(self._heard.items()):
            if stranger.proved:
                del self._heard[stranger]
            elif stranger.begun or stranger.frames_in != frames:
                self._heard[stranger] = now_s, stranger.frames_in
            elif now_s - heard_s > (self._idle_s if frames else UNPROVEN_FIRST_S):
                self.closed += 1
                yield stranger
