"""What every feature's requests need, whatever the feature, and what the broker takes from a feature in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import BrokerMetrics
    from broker.requests.access import Authorizer
    from broker.requests.answers import ConfirmedAnswers
    from broker.requests.identity import BrokerIdentity
    from broker.store.log_store import LogStore
    from remoting.transport.contracts import Handler
    from runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class RequestTools:
    """Given to each feature; what a feature needs of another one is given beside it."""

    config: BrokerConfig
    store: LogStore
    clock: Clock
    metrics: BrokerMetrics
    log: Any
    authorizer: Authorizer
    answers: ConfirmedAnswers
    identity: BrokerIdentity


class Feature:
    """What the broker takes from a feature; each overrides what it has. Loop thread only."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; no code is in two features."""
        return {}

    def start(self) -> None:
        """Begin to work, before clients can reach the broker: what a stop interrupted goes on, timers run."""

    def stop(self) -> None:
        """End timers; nothing is written any more. Without `start` before it this does nothing."""

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Expire what is not used any more, every `maintain_interval_ms`; how much was dropped, by reason.

        Raises:
            StoreError: the log cannot be written; the next call tries again.
        """
        del now_ms
        return {}

    def status(self) -> dict[str, int]:
        """This feature's numbers in CLUSTER_STATUS."""
        return {}
