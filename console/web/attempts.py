"""The count of failed sign-ins per address.

    failed -> 0: the address has failures left      ms: it has failed too often within its window, which lasts that long

What is right is let in whatever was counted, since an address is often that of many: behind a router or a reverse proxy
one who guesses must not keep the others out. So the count decides only how a failure is answered and logged; what keeps
guesses from being right is the length of tokens and secrets. IPv6 addresses count by their /64. Invariant: at most
`ADDRESSES_MAX` addresses are remembered, the oldest forgotten first. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from remoting.transport.origins import origin_of

ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class FailureWindow:
    """Failures of one address since the first of them, in ms of the caller's clock."""

    begun_ms: int
    failures: int = 0


class SignInAttempts:
    """Failed sign-ins by address."""

    def __init__(self, *, failures_max: int, window_ms: int) -> None:
        self._failures_max = failures_max
        self._window_ms = window_ms
        self._windows: OrderedDict[str, FailureWindow] = OrderedDict()

    def failed(self, host: str, now_ms: int) -> int:
        """Count a failed sign-in of an address at a time in ms; return how long its window lasts if there have been too
        many in it, 0 otherwise."""
        name = origin_of(host)
        window = self._windows.get(name)
        if window is None or now_ms - window.begun_ms >= self._window_ms:
            window = self._windows[name] = FailureWindow(now_ms)
            self._windows.move_to_end(name)
        window.failures += 1
        while len(self._windows) > ADDRESSES_MAX:
            self._windows.popitem(last=False)
        return window.begun_ms + self._window_ms - now_ms if window.failures > self._failures_max else 0
