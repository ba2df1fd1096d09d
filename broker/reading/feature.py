"""Reading as one feature: raw records by queue and offset, and the requests that wait until there are some."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.reading.bounds import BoundsRequests, LongPolls
from broker.reading.log_identity import LogIdentity
from broker.reading.pull import PullRequests
from broker.reading.read_barrier import Proved, ReadBarrier, unneeded
from broker.requests import Feature, RequestTools
from broker.store.errors import StoreError
from remoting.batches.unpack import Unpacker

if TYPE_CHECKING:
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler
    from runtime.metrics import Registry


class ReadingFeature(Feature):
    """The requests with which proxies and Spark read."""

    def __init__(
        self, tools: RequestTools, topics: TopicFeature, may_answer: Callable[[], bool], registry: Registry
    ) -> None:
        """`may_answer`: whether this broker's state is current; while it is not, no wait ends empty."""
        limits = tools.config.limits
        self.unpacker = Unpacker()
        self.long_polls = LongPolls(
            waiters_max=limits.parked_requests_max, wait_ms_max=limits.long_poll_ms_max, may_answer=may_answer
        )
        self.prove: Callable[[Proved], None] = unneeded
        """Whether no other master has shown more until now."""
        self._proofs = registry.counter(
            "rocketmq_read_proofs_total",
            "Readers ahead of this master's log, by what became of the proof that no other master had shown more",
            labels=("outcome",),
        )
        if tools.config.replication.enabled:
            self.prove = ReadBarrier(tools.store, _later, self._count_proof).wait
        self._identity = LogIdentity(tools.store, secrets.token_bytes)
        self._log = tools.log
        self._requests = (
            PullRequests(tools, visible=topics.visible, prove=self.prove),
            BoundsRequests(tools, topics=topics.table, long_polls=self.long_polls, log_identity=self._identity.known),
        )
        topics.table.on_change(lambda _name, _created: self.long_polls.wake_all())
        tools.store.positions.on_advance(self.long_polls.advanced, self.long_polls.waiters)

    def handlers(self) -> dict[int, Handler]:
        """MULTI_PULL, RANGE_PULL, RECORDS_AT, FILTERED_PULL, QUEUE_BOUNDS."""
        return {code: handler for requests in self._requests for code, handler in requests.handlers().items()}

    def start(self) -> None:
        """Give the log an identity, if it has none."""
        try:
            self._identity.ensure()
        except StoreError as error:
            self._log.warning("log_without_identity", error=str(error))

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Give the log an identity that it could not have at the start. Raises StoreError."""
        del now_ms
        self._identity.ensure()
        return {}

    def _count_proof(self, outcome: str) -> None:
        self._proofs.child(outcome).value += 1

    def status(self) -> dict[str, int]:
        """How many requests wait."""
        return {"long_polls": len(self.long_polls)}


def _later(seconds: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, call)
