"""What every feature is given (`RequestTools`), and what it offers in turn (`Feature`).

`BrokerIdentity`: the address of this broker for its clients, and when it started. Invariant: message ids made here are
unique per start of the process. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import BrokerMetrics
    from broker.requests.answers import ConfirmedAnswers
    from broker.store.log_store import LogStore
    from remoting.server.authorizer import Authorizer
    from remoting.transport.contracts import Handler
    from runtime.clock import Clock


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


@dataclass(frozen=True, slots=True)
class RequestTools:
    """Given to each feature; parts of other features that it needs are further arguments."""

    config: BrokerConfig
    store: LogStore
    clock: Clock
    metrics: BrokerMetrics
    log: Any
    authorizer: Authorizer
    answers: ConfirmedAnswers
    identity: BrokerIdentity


class Feature:
    """One feature of the broker; each overrides what it offers. Loop thread only."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; no code is in two features."""
        return {}

    def start(self) -> None:
        """Begin to work, before clients can reach the broker: continue interrupted work, start timers."""

    def stop(self) -> None:
        """End timers; nothing is written afterwards. Does nothing without a `start` before it."""

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Expire what is no longer used, every `maintain_interval_ms`; returns how much was dropped, by reason.

        Raises:
            StoreError: the log cannot be written; the next call tries again.
        """
        del now_ms
        return {}

    def status(self) -> dict[str, int]:
        """This feature's numbers in CLUSTER_STATUS."""
        return {}
