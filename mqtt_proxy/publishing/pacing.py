"""Why a client is not read: its publishes wait for the broker, or it has used up a publish quota.

Both only ever pause the reading of its socket: TCP slows the publisher down, nothing is lost, and its keep-alive stands
still meanwhile. What was read before the pause is published.
Invariant: the socket is read exactly while no reason is left; after `stop` nothing is resumed. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.quotas import Pause, PublishRates, RatedPublisher
from runtime.clock import Clock
from runtime.logs import get_logger

BROKER, QUOTA = 1, 2  # why a client is not read

LOG = get_logger("proxy.quotas")


class PausableSocket(Protocol):
    """A socket whose input can be paused."""

    def pause_reading(self) -> None:
        """Read nothing for now."""

    def resume_reading(self) -> None:
        """Take input again."""


def nobody(_reason: str) -> None:
    """Gives up nothing: in the place of a client that has ended."""


class Pacing:
    """The reading of one client's socket."""

    __slots__ = (
        "_clock",
        "_logged",
        "_metrics",
        "_over",
        "_paused_by",
        "_rates",
        "_readable",
        "_timer",
    )  # fmt: skip

    def __init__(self, readable: PausableSocket, rates: PublishRates, clock: Clock, metrics: ProxyMetrics) -> None:
        self._readable = readable
        self._rates = rates
        self._clock = clock
        self._metrics = metrics
        self._paused_by = 0
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._logged = False

    def hold(self) -> None:
        """Too much is published and not confirmed, over all clients."""
        self._stop_for(BROKER)

    def release(self) -> None:
        """The broker has caught up."""
        self._go_on(BROKER)

    def charge(self, who: RatedPublisher, publishes: Sequence[Publish]) -> None:
        """Charge what was read to the quotas of its publisher, and read later when that was too much."""
        size_bytes = sum([len(one.topic) + len(one.payload) for one in publishes])
        pause = self._rates.charge(who, len(publishes), size_bytes, self._clock.monotonic_ns() // 1_000_000)
        if pause is not None and not self._over:
            self._tell(who, pause)
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(pause.ms / 1_000, self._go_on, QUOTA)
            self._stop_for(QUOTA)

    def stop(self) -> None:
        """The connection has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, who: RatedPublisher, pause: Pause) -> None:
        self._metrics.publishes.rate_pauses.child(pause.quota).value += 1
        if not self._logged:
            self._logged = True  # once per connection: the counter tells the rest
            LOG.info(
                "publish_rate_reached", quota=pause.quota, client_id=who.client_id, user=who.user, peer=who.address,
                pause_ms=pause.ms,
            )  # fmt: skip

    def _stop_for(self, why: int) -> None:
        if not self._over:
            if not self._paused_by:
                self._readable.pause_reading()
            self._paused_by |= why

    def _go_on(self, why: int) -> None:
        if self._paused_by & why and not self._over:
            self._paused_by &= ~why
            if not self._paused_by:
                self._readable.resume_reading()
