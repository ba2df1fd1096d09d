"""What a sender is answered, and what is counted, when the store could not take, confirm or read something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.store.errors import CorruptLog, GivenUp, StoreError, StoreFull
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics


def refusal_of(metrics: BrokerMetrics, error: Exception) -> Refused:
    """What a sender is told, and what is counted, when the store could not take or confirm its messages."""
    if isinstance(error, StoreFull):
        metrics.refused.child("disk_full").value += 1
        return Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the disk of this broker is full, nothing was stored: {error}",
        )
    if isinstance(error, GivenUp):
        metrics.refused.child("given_up").value += 1
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error), error.fields)
    if isinstance(error, CorruptLog):
        metrics.refused.child("damaged").value += 1
        return Refused(ResponseCode.SYSTEM_ERROR, str(error))
    if isinstance(error, StoreError):
        metrics.refused.child("log_failed").value += 1
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker cannot write its log: {error}")
    metrics.refused.child("message").value += 1
    return Refused(ResponseCode.MESSAGE_ILLEGAL, str(error))
