"""Why a client is not read: its publishes wait for the broker, or it has used up a publish quota.

Both only ever pause the reading of its socket: TCP slows the publisher down, nothing is lost, and its keep-alive stands
still meanwhile. What was read before the pause is published.
Invariant: the socket is read exactly while no reason is left; after `stop_pacing` nothing is resumed. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mqtt_proxy.front.publish_rates import Pause, Publisher, PublishRates
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.packets import Publish
from runtime.clock import Clock
from runtime.logs import get_logger

BROKER, QUOTA = 1, 2  # why a client is not read

LOG = get_logger("proxy.quotas")


class Readable(Protocol):
    """What is paused."""

    def pause_reading(self) -> None:
        """Read nothing for now."""

    def resume_reading(self) -> None:
        """Read again."""


def nobody(_reason: str) -> None:
    """Gives up nothing: in the place of a client that has ended."""


class Paced:
    """The reading of one client; the client is one of these."""

    __slots__ = (
        "_counters",
        "_pacing_over",
        "_paused_by",
        "_rate_clock",
        "_rate_timer",
        "_rates",
        "_readable",
        "_told",
    )  # fmt: skip

    def __init__(self, readable: Readable, rates: PublishRates, clock: Clock, metrics: ProxyMetrics) -> None:
        self._readable = readable
        self._rates = rates
        self._rate_clock = clock
        self._counters = metrics
        self._paused_by = 0
        self._rate_timer: asyncio.TimerHandle | None = None
        self._pacing_over = False
        self._told = False

    def hold(self) -> None:
        """Too much is published and not confirmed, over all clients."""
        self._stop_for(BROKER)

    def release(self) -> None:
        """The broker has caught up."""
        self._go_on(BROKER)

    def charge(self, who: Publisher, publishes: Sequence[Publish]) -> None:
        """Charge what was read to the quotas of its publisher, and read later when that was too much."""
        size_bytes = sum([len(one.topic) + len(one.payload) for one in publishes])
        pause = self._rates.charge(who, len(publishes), size_bytes, self._rate_clock.monotonic_ns() // 1_000_000)
        if pause is not None and not self._pacing_over:
            self._tell(who, pause)
            if self._rate_timer is not None:
                self._rate_timer.cancel()
            self._rate_timer = asyncio.get_running_loop().call_later(pause.ms / 1_000, self._go_on, QUOTA)
            self._stop_for(QUOTA)

    def stop_pacing(self) -> None:
        """The connection has ended."""
        self._pacing_over = True
        if self._rate_timer is not None:
            self._rate_timer.cancel()

    def _tell(self, who: Publisher, pause: Pause) -> None:
        self._counters.rate_pauses.child(pause.quota).value += 1
        if not self._told:
            self._told = True  # once per connection: the counter tells the rest
            LOG.info(
                "publish_rate_reached", quota=pause.quota, client_id=who.client_id, user=who.user, peer=who.address,
                pause_ms=pause.ms,
            )  # fmt: skip

    def _stop_for(self, why: int) -> None:
        if not self._pacing_over:
            if not self._paused_by:
                self._readable.pause_reading()
            self._paused_by |= why

    def _go_on(self, why: int) -> None:
        if self._paused_by & why and not self._pacing_over:
            self._paused_by &= ~why
            if not self._paused_by:
                self._readable.resume_reading()
