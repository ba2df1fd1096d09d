"""The part of the broker in memory that belongs to one client id."""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.protocol.bodies.session_body import InflightEntry
from remoting.transport.contracts import Peer


@dataclass
class FakeSession:
    """The broker's state of one client id."""

    epoch: int
    durable: bool
    owner: Peer | None
    subscriptions: dict[str, tuple[int, int]] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    inflight: list[InflightEntry] = field(default_factory=list)
    exact: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    exact_below: dict[int, int] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
