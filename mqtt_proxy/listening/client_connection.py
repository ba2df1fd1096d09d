"""What a client of the bridge needs of its connection; the front's `Connection` is one.

Invariant: the bridge knows nothing else of sockets. Pure declarations.
"""

from __future__ import annotations

from typing import Protocol

from mqtt_proxy.mqtt.session.session import Session


class ClientConnection(Protocol):
    """What a client needs of its connection."""

    session: Session
    is_loopback: bool
    peer_address: str
    over_connect_rate: bool
    certificate_name: str | None

    def peer_left(self) -> bool:
        """Whether the client has closed its side."""

    def flush(self) -> None:
        """Write the session's output at the end of the turn."""

    def pause_reading(self) -> None:
        """Read nothing for now."""

    def resume_reading(self) -> None:
        """Read from this client again."""

    def close(self, reason: str) -> None:
        """Write what is pending and close."""
