"""Where a task asks for its ranges: at the reader processes beside a broker while they serve, else at the broker.

A reader is a short cut, never an authority: whatever it cannot answer with the very records asked for (it is gone, it
refuses, it knows less than the driver) is asked again at the broker, whose word counts. Invariant: a reader is left for
the rest of the task after `FAILURES_MAX` lost connections or one unusable answer, so a task always ends. Thread rule:
one task.
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.protocol.errors import LightMQError
from remoting.transport.failures import ConnectionLost
from spark_connector.brokers.connections import Address

FAILURES_MAX = 2
"""Lost connections to readers of one broker before the task stays with the broker: one reader may die, not each."""
TIMEOUT_MS_MAX = 5_000
"""Longest wait for a reader; the broker gets the whole `pullTimeoutMs`."""


class NotAnswered(LightMQError):
    """A reader answered with something else than the records asked for."""


class TaskEndpoints:
    """The addresses of one task, by broker group."""

    def __init__(self, brokers: Mapping[str, Address], readers: Mapping[str, Address]) -> None:
        self._brokers = dict(brokers)
        self._readers = dict(readers)
        self._failures: dict[str, int] = {}

    def of(self, broker: str) -> Address:
        """Where to ask for ranges of this broker now."""
        return self._readers.get(broker) or self._brokers[broker]

    def authority(self, broker: str) -> Address:
        """Where this broker itself is."""
        return self._brokers[broker]

    def is_reader(self, broker: str) -> bool:
        """Whether `of` names a reader."""
        return broker in self._readers

    def timeout_ms(self, broker: str, wanted_ms: int) -> int:
        """How long to wait there."""
        return min(wanted_ms, TIMEOUT_MS_MAX) if broker in self._readers else wanted_ms

    def reader_failed(self, broker: str, failure: Exception) -> None:
        """Take in that a reader of this broker failed; another one may be asked after a lost connection."""
        self._failures[broker] = self._failures.get(broker, 0) + 1
        if not isinstance(failure, ConnectionLost) or self._failures[broker] >= FAILURES_MAX:
            del self._readers[broker]

    def brokers_moved(self, masters: Mapping[str, Address]) -> None:
        """Take in where the brokers are now; a server that is no name server is the one broker itself."""
        for broker, known in self._brokers.items():
            self._brokers[broker] = masters.get(broker) or masters.get("") or known
