"""What every client of the proxy shares: made once by the composition root, handed to each client.

Invariant: parts only, no behaviour but keeping track of tasks. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from mqtt_proxy.access.contract import AccessControl
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.delivery import DeliveryTools
from mqtt_proxy.link.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.publishing.inbound import PublishingParts
from mqtt_proxy.publishing.publisher import Publisher
from mqtt_proxy.quotas.quotas import Quotas
from mqtt_proxy.sessions.calls import SessionCalls
from mqtt_proxy.sessions.owners import Owners
from mqtt_proxy.sessions.qos2 import Qos2Flows
from mqtt_proxy.subscriptions.subscriptions import SubscriptionParts
from mqtt_proxy.sys_topics.tree import SysTree
from runtime.clock import Clock
from runtime.logs import get_logger

LOG = get_logger("proxy.services")


@dataclass(kw_only=True, slots=True)
class Services:
    """The parts of one proxy."""

    config: ProxyConfig
    metrics: ProxyMetrics
    link: Link
    publisher: Publisher
    owners: Owners
    tools: DeliveryTools
    access: AccessControl
    clock: Clock
    quotas: Quotas
    sys_tree: SysTree
    exact: Qos2Flows
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Work that a stopping proxy waits for."""
    calls: SessionCalls = field(init=False)
    """What is said to the broker about sessions."""
    publishing: PublishingParts = field(init=False)
    """What clients that publish share."""
    subscribing: SubscriptionParts = field(init=False)
    """What clients that subscribe share."""

    def __post_init__(self) -> None:
        self.calls = SessionCalls(self.link, self.publisher, self.keep)
        config, quotas = self.config, self.quotas
        self.publishing = PublishingParts(
            self.publisher,
            quotas.rates,
            self.clock,
            self.metrics,
            retained_payload_bytes_max=config.quotas.retained_payload_bytes_max,
            report_no_subscribers=config.report_no_subscribers,
        )
        self.subscribing = SubscriptionParts(
            self.link, self.metrics, quotas, self.sys_tree, config.subscriptions_per_session_max
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work`; it is kept until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Keep a task until it is done; its failure, if any, has been dealt with by whoever made it."""
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            LOG.error("step_failed", error=repr(error), exc_info=error)
