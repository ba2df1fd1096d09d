"""What every feature's requests need, whatever the feature: the log, its options, time, counters, rights, answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.metrics import BrokerMetrics
    from broker.requests.access import Authorizer
    from broker.requests.answers import ConfirmedAnswers
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


class Feature(Protocol):
    """What the composition gathers of a feature."""

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler; no code is in two features."""
