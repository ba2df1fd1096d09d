"""Failed sign-ins per address: how many there were, and how long the answers to too many of them wait.

    failed -> 0: the address has failures left      ms: it has failed too often within its window, which lasts that long
    delay_ms -> until such a failure is answered    0: at once, for as many answers of the address wait as may

What is right is let in at once whatever was counted, since an address is often that of many: behind a router or a
reverse proxy one who guesses must not keep the others out. What is wrong is answered once per `DELAY_MS` and address,
so that guesses one after the other are slow; of guesses at the same time each costs a connection. What keeps guesses
from being right in the end is the length of tokens and secrets. IPv6 addresses count by their /64. Invariant: at most
`ADDRESSES_MAX` addresses are remembered, the oldest forgotten first, and at most `DELAYED_MAX` answers wait. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from remoting.transport.origins import origin_of

ADDRESSES_MAX = 10_000
DELAY_MS = 500
"""Time between the answers to an address that has failed too often."""
DELAYED_PER_ADDRESS_MAX = 8
DELAYED_MAX = 128
"""Answers that wait, of all addresses; half of the connections that the port has."""


@dataclass(slots=True)
class FailureWindow:
    """Failures of one address since the first of them, in ms of the caller's clock."""

    begun_ms: int
    failures: int = 0
    unlogged: int = 0
    """Failures that were too many and that `take_unlogged` has not told of."""
    held: int = 0
    """Answers that wait."""
    answered_ms: int = 0
    """When the last of them is due."""


class SignInAttempts:
    """Failed sign-ins by address."""

    def __init__(self, *, failures_max: int, window_ms: int) -> None:
        self._failures_max = failures_max
        self._window_ms = window_ms
        self._windows: OrderedDict[str, FailureWindow] = OrderedDict()
        self._held = 0

    def failed(self, host: str, now_ms: int) -> int:
        """Count a failed sign-in of an address at a time in ms; return how long its window lasts if there have been too
        many in it, 0 otherwise."""
        window = self._window(origin_of(host), now_ms)
        window.failures += 1
        if window.failures <= self._failures_max:
            return 0
        window.unlogged += 1
        return window.begun_ms + self._window_ms - now_ms

    def unlogged(self, host: str) -> int:
        """How many failures of an address were too many, since they were taken for the log last."""
        window = self._windows.get(origin_of(host))
        return 0 if window is None else window.unlogged

    def take_unlogged(self, host: str) -> int:
        """The same; they are told of now."""
        count = self.unlogged(host)
        if count:
            self._windows[origin_of(host)].unlogged = 0
        return count

    def delay_ms(self, host: str, now_ms: int) -> int:
        """Return how long the answer to a failure waits, in ms; unless that is 0, `released` follows."""
        window = self._windows[origin_of(host)]
        if window.held >= DELAYED_PER_ADDRESS_MAX or self._held >= DELAYED_MAX:
            return 0
        window.held += 1
        self._held += 1
        window.answered_ms = max(window.answered_ms, now_ms) + DELAY_MS
        return window.answered_ms - now_ms

    def released(self, host: str) -> None:
        """An answer that waited has been given, or nobody waits for it any more."""
        self._held -= 1
        window = self._windows.get(origin_of(host))
        if window is not None and window.held:
            window.held -= 1

    def _window(self, name: str, now_ms: int) -> FailureWindow:
        """The window of an address, begun anew if it was over."""
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = FailureWindow(now_ms)
        elif now_ms - window.begun_ms >= self._window_ms:
            window.begun_ms, window.failures = now_ms, 0
            self._windows.move_to_end(name)
        while len(self._windows) > ADDRESSES_MAX:
            self._windows.popitem(last=False)
        return window
