"""Who this broker is to its clients: where they reach it, and since when it runs.

A message id of a client that sent none is unique per start of the process. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable


class BrokerIdentity:
    """The address of one running broker, and the ids it makes."""

    def __init__(self, *, epoch: int, started_ms: int, started_position: int) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.readers_address: Callable[[], str | None] = lambda: None
        """`host:port` at which reader processes answer RANGE_PULL right now; None where there are none."""
        self.started_ms = started_ms
        self.started_position = started_position
        self._epoch = epoch
        self._ids = 0

    @property
    def address(self) -> str:
        """`host:port` at which clients reach this broker."""
        return f"{self.host}:{self.port}"

    def unique_id(self) -> str:
        """A message id for a client that sent none: unique per process start, 32 hex digits."""
        self._ids += 1
        return f"{self._epoch & 0xFFFFFFFF:08X}{self.started_ms & 0xFFFFFFFFFFFF:012X}{self._ids:012X}"
