"""Subscriptions as the broker sees them: followers are counted, and filters without a subscriber end."""

from __future__ import annotations

from broker.subscriptions.feature import SubscriptionFeature
from remoting.protocol.frames.codes import RequestCode


async def test_a_filter_without_subscriptions_ends_with_its_time(running) -> None:
    subscriptions = running.broker.subscriptions
    assert isinstance(subscriptions, SubscriptionFeature)
    assert set(subscriptions.handlers()) == {RequestCode.FOLLOW}
    subscriptions.filters.acquire(b"a/#")
    subscriptions.filters.release(b"a/#", running.clock.now_ms(), lost=True)
    assert subscriptions.status() == {"filters": 1, "followers": 0}
    assert subscriptions.maintain(running.clock.now_ms()) == {"filter_expired": 0}
    running.clock.advance_ms(running.config.filter_expiry_s * 1_000)
    assert subscriptions.maintain(running.clock.now_ms()) == {"filter_expired": 1}
    assert subscriptions.status()["filters"] == 0
