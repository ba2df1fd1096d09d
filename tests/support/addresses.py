"""Addresses of this machine, for tests of what peers on other machines get."""

from __future__ import annotations

import socket


def own_address() -> str | None:
    """One that is not loopback; None when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith(("127.", "0.")) else address
