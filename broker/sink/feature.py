"""Exactly-once sinks as one feature: staged attempts, the ledger of their commits, and the requests about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.requests.tools import Feature, RequestTools
from broker.sink.ledger import SinkLedger
from broker.sink.requests import SinkRequests
from broker.sink.stages import Stages
from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.retained.retained import RetainedQuota
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler


class SinkFeature(Feature):
    """The broker half of exactly-once sinks."""

    def __init__(
        self, tools: RequestTools, topics: TopicFeature, *, placement: Placement, quota: RetainedQuota
    ) -> None:
        config, limits = tools.config, tools.config.limits
        self.stages = Stages(
            tools.store,
            topics.hidden,
            expiry_ms=config.stage_expiry_s * 1_000,
            attempts_max=limits.stage_attempts_max,
            now_ms=tools.identity.started_ms,
        )
        self.ledger = SinkLedger(tools.store, self.stages, placement, group_bytes_max=limits.commit_group_bytes_max)
        self._log = tools.log
        self._requests = SinkRequests(
            tools,
            stages=self.stages,
            ledger=self.ledger,
            placement=placement,
            quota=quota,
            publication=topics.publication,
        )

    def handlers(self) -> dict[int, Handler]:
        """STAGE, COMMIT_BATCH, ABORT_BATCH, LEDGER, CHECK_PUBLISH."""
        return self._requests.handlers()

    def start(self) -> None:
        """Carry on the commits that a stop interrupted: part of them is visible already."""
        for run in self.ledger.unfinished():
            try:
                while not run.finished:
                    self.ledger.step(run)
                self._log.info("commit_finished", sink=run.sink, batch=run.batch, rows=run.total)
            except LightMQError as error:
                self._log.error("commit_not_finished", sink=run.sink, batch=run.batch, error=str(error))

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Drop the attempts that were not committed in time."""
        return {"stage_expired": self.ledger.expire(now_ms)}

    def status(self) -> dict[str, int]:
        """How many attempts are staged."""
        return {"staged_attempts": len(self.stages)}
