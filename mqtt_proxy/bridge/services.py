"""What every client of the proxy shares: made once by the composition root, handed to each client.

Invariant: parts only, no behaviour but keeping track of tasks. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from mqtt_proxy.access.exchange import Exchange
from mqtt_proxy.bridge.delivery_tools import DeliveryTools
from mqtt_proxy.bridge.exact import ExactFlows
from mqtt_proxy.bridge.link import Link
from mqtt_proxy.bridge.ownership import Owners
from mqtt_proxy.bridge.publish import Publisher
from mqtt_proxy.bridge.session_calls import SessionCalls
from mqtt_proxy.bridge.sys_tree import SysTree
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.front.quotas import Quotas
from mqtt_proxy.metrics import ProxyMetrics
from remoting.access.identity import Identity, Shown, Unproven
from remoting.access.rules import Verdict
from runtime.clock import Clock
from runtime.logs import get_logger

LOG = get_logger("proxy.services")


class Access(Protocol):
    """Who may do what: the gate."""

    def at_hand(self, shown: Shown) -> Identity | Unproven | None:
        """What `authenticate` would answer, if that can be said without waiting; None when it cannot."""

    async def authenticate(self, shown: Shown) -> Identity | Unproven:
        """Who this is, or why nobody knows."""

    def begin_exchange(self, method: str, shown: Shown) -> Exchange | None:
        """An enhanced authentication by this method; None when it is not offered."""

    def authorize(
        self, identity: Identity, action: str, topic: bytes | str, *, qos: int = 0, retain: bool = False
    ) -> Verdict:
        """Whether it may do this with the topic or filter; a refusal is counted and logged."""

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        """Which messages it may publish to the topic, as bits of `rules.write_bit`; nothing is counted."""

    def read_mask(self, identity: Identity, topic: bytes) -> int:
        """How messages of the topic may be read, as bits of `rules.READ_LIVE` and so on; nothing is counted."""


@dataclass(kw_only=True, slots=True)
class Services:
    """The parts of one proxy."""

    config: ProxyConfig
    metrics: ProxyMetrics
    link: Link
    publisher: Publisher
    owners: Owners
    tools: DeliveryTools
    access: Access
    clock: Clock
    quotas: Quotas
    sys_tree: SysTree
    exact: ExactFlows
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)
    """Work that a stopping proxy waits for."""
    calls: SessionCalls = field(init=False)
    """What is said to the broker about sessions."""

    def __post_init__(self) -> None:
        self.calls = SessionCalls(self.link, self.publisher, self.keep)

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
