"""Logs what an acknowledgement of this broker means: at its start, when it becomes master, and when its group changes.

How many brokers the group has is known to the controllers; while they do not answer the sentence does without.
Invariant: each sentence is logged once until it changes. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from broker.replication.promises import DurabilityRule, promise
from remoting import background
from remoting.protocol.errors import LightMQError

if TYPE_CHECKING:
    from broker.config import BrokerConfig

SETTLE_S = 5.0
"""Between two questions how many brokers the group has: members that start together are counted together."""


def rule_of(config: BrokerConfig) -> DurabilityRule:
    """The rule of a broker's configuration."""
    settings = config.replication
    return DurabilityRule(
        flush=config.store.flush,
        in_group=settings.enabled,
        acknowledge=settings.acknowledge,
        count=len(settings.members) if settings.mode == "dledger" else settings.in_sync_replicas,
        in_sync_min=settings.in_sync_min,
        elects_itself=settings.mode == "dledger",
    )


def log_promise(config: BrokerConfig, log: Any, brokers: int | None = None) -> None:
    """One line about what is promised; a warning beside it when the configuration cannot keep it."""
    found = promise(rule_of(config), brokers)
    log.info("durability", promise=found.text)
    if found.warning:
        log.warning("durability_limited", warning=found.warning)


class DurabilityLog:
    """What a master logs about the promise of its group."""

    def __init__(
        self, config: BrokerConfig, group_size: Callable[[], Awaitable[int]], log: Any, *, settle_s: float = SETTLE_S
    ) -> None:
        """`group_size` asks the controllers; it raises LightMQError when they do not answer."""
        self._config, self._group_size, self._log, self._settle_s = config, group_size, log, settle_s
        self._brokers: int | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Log the promise now, and with the number of brokers once it is known."""
        log_promise(self._config, self._log)
        self._changed.set()
        self._task = background.task(self._watch(), "watches the replicas in sync")

    async def stop(self) -> None:
        """Log nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def group_changed(self) -> None:
        """The controllers have committed another set: there may be more brokers or fewer."""
        self._changed.set()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settle_s)
            await self._changed.wait()
            self._changed.clear()
            try:
                brokers = await self._group_size()
            except LightMQError as error:
                self._log.debug("group_size_unknown", error=str(error))
                self._changed.set()
                continue
            if brokers != self._brokers:
                self._brokers = brokers
                log_promise(self._config, self._log, brokers)
