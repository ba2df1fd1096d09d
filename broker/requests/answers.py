"""Answers that wait until what they show or acknowledge is confirmed, and the refusal when the store fails.

Invariant: nothing is sent before the confirm position has passed the position an answer names; if the store fails
first, its refusal is sent instead. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from broker.store.errors import CorruptLog, GivenUp, StoreError, StoreFull
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore


def refusal_of(metrics: BrokerMetrics, error: Exception) -> Refused:
    """The refusal for an error of the store, counted by reason."""
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


class ConfirmedAnswers:
    """Sends replies when the log position they depend on is confirmed."""

    def __init__(
        self,
        store: LogStore,
        metrics: BrokerMetrics,
        when_published: Callable[[Collection[str], Callable[[], None]], None],
    ) -> None:
        """`when_published(topics, then)` calls back once the controllers within reach have the topics' routes."""
        self._store = store
        self._metrics = metrics
        self._when_published = when_published

    def reply_at(self, position: int, peer: Peer, reply: Command) -> None:
        """Send a reply once everything below `position` is confirmed."""
        self.when_confirmed(position, peer, reply, lambda: peer.send(reply))

    def reply_when_found(self, position: int, names: Collection[str], peer: Peer, reply: Command) -> None:
        """As `reply_at`, and not before the controllers within reach have the routes of these topics."""
        send = partial(peer.send, reply)
        self.when_confirmed(position, peer, reply, partial(self._when_published, names, send))

    def when_confirmed(self, position: int, peer: Peer, reply: Command, then: Callable[[], None]) -> None:
        """Call `then` once everything below `position` is confirmed; if the store fails first, send its refusal."""

        def confirmed(error: Exception | None) -> None:
            if error is None:
                then()
                return
            refused = refusal_of(self._metrics, error)
            reply.code, reply.remark, reply.body = refused.code, refused.remark, b""
            reply.fields = dict(refused.fields)
            peer.send(reply)

        self._store.when_confirmed(position, confirmed)
