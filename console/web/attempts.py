"""The limit of failed sign-ins: per address, and over all addresses together.

An address that has failed too often within the window is refused without a look at what it shows, until its window is
over; a success does not shorten that, so that somebody with one key cannot go on guessing another. IPv6 addresses count
by their /64. Invariant: at most `ADDRESSES_MAX` addresses are remembered, the oldest forgotten first. Pure.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

ADDRESSES_MAX = 10_000
NETWORK_BITS = 64
"""An IPv6 client has at least as many addresses as this leaves."""


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

    def wait_ms(self, host: str, now_ms: int) -> int:
        """Return how long an address has to wait; 0 when it may try."""
        window = self._windows.get(_network(host))
        if window is None or window.failures < self._failures_max:
            return 0
        return max(0, window.begun_ms + self._window_ms - now_ms)

    def failed(self, host: str, now_ms: int) -> None:
        """Count a failed sign-in of an address at a time in ms."""
        name = _network(host)
        window = self._windows.get(name)
        if window is None or now_ms - window.begun_ms >= self._window_ms:
            window = self._windows[name] = FailureWindow(now_ms)
            self._windows.move_to_end(name)
        window.failures += 1
        while len(self._windows) > ADDRESSES_MAX:
            self._windows.popitem(last=False)


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
