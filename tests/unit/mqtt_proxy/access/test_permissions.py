"""What one client may do under real rules, which change."""

from __future__ import annotations

import asyncio

from mqtt_proxy.access.gate import Authority
from mqtt_proxy.access.permissions import READABLE_TOPICS_MAX, REFUSED, Permissions
from mqtt_proxy.delivery.record_cache import Feed
from mqtt_proxy.delivery.resume import Again
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.grants import grant_of
from mqtt_proxy.metrics import AccessCounters, ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.session.in_flight import RETAINED_QUEUE
from remoting.access.acl_file import parse
from remoting.access.rules import READ_HISTORY, READ_LIVE, Identity
from runtime.metrics import Registry
from tests.support.clock import ManualClock

LIST = b"user ann\ntopic a/#\ntopic read qos=0 retained=no r/#\n"


def make(text: bytes = LIST) -> tuple[Permissions, Authority, Registry]:
    registry = Registry()
    authority = Authority(parse(text, name="acl"), clock=ManualClock(), counters=AccessCounters(registry))
    may = Permissions(authority, Identity("ann", False, "c"), ProxyMetrics(registry))  # type: ignore[arg-type]
    authority.on_change(may.rules_changed)
    return may, authority, registry


def publish(topic: bytes, qos: int = 1) -> Publish:
    return Publish(topic, b"", qos, False, dup=False, packet_id=qos)


def source(topic_filter: str, qos: int) -> tuple[str, Source]:
    return topic_filter, Source(topic_filter, Feed(1), grant_of(qos), 0, 0)


def test_publishing() -> None:
    """All or nothing: the first refused topic, or each by itself; counted by message, forgotten with the rules."""
    may, authority, registry = make()
    batch = [publish(b"a/x"), publish(b"b"), publish(b"a/y"), publish(b"r/x")]
    assert may.first_refused(batch[:1]) is None
    assert may.first_refused(batch) is batch[1]
    assert may.sift(batch) == ([batch[0], batch[2]], [batch[1], batch[3]])
    counted = registry.values()
    assert counted["rocketmq_mqtt_publishes_refused_total{not_authorized}"] == 3
    assert counted["rocketmq_mqtt_denials_total{publish,no_rule}"] == 3
    authority.replace(parse(b"user ann\ntopic b\n", name="acl"))
    assert may.revision == 1
    assert may.sift(batch[:2]) == ([batch[1]], [batch[0]])


def test_subscriptions_are_judged_again() -> None:
    """Revoked, lowered, or unchanged."""
    may, authority, registry = make()
    assert (may.qos_allowed("a/+"), may.qos_allowed("r/x"), may.qos_allowed("b/#")) == (2, 0, REFUSED)
    assert (may.qos_allowed("#"), may.is_partial("#"), may.is_partial("a/#")) == (0, True, False)
    held = [source("a/+", 1), source("r/#", 1), source("a/x", 1)]
    assert may.revoked(held) == []
    assert [one.grant.qos for _, one in held] == [1, 0, 1]
    authority.replace(parse(LIST + b"topic deny a/x\n", name="acl"))
    assert may.revoked(held) == ["a/x"]
    assert [one.grant.judged for _, one in held] == [True, False, False]
    assert (may.may_read(b"a/x", READ_LIVE), may.may_read(b"a/y", READ_LIVE)) == (False, True)
    assert registry.values()["rocketmq_mqtt_subscriptions_revoked_total"] == 1
    authority.replace(parse(LIST, name="acl"))
    assert may.revoked(held[:1]) == []
    assert not held[0][1].grant.judged
    assert may.may_read(b"a/x", READ_LIVE)


def test_history_of_a_filter_is_judged_by_itself() -> None:
    """A filter may be readable live while only a part of it may be read from the past."""
    may, _, _ = make(b"user ann\ntopic read history=no r/#\ntopic read r/x\n")
    assert not may.is_partial("r/#")
    assert may.is_partial("r/#", history=True)
    assert (may.may_read(b"r/x", READ_HISTORY), may.may_read(b"r/y", READ_HISTORY)) == (True, False)
    assert may.may_read(b"r/y", READ_LIVE)


def test_the_cached_filters_are_bounded() -> None:
    """A new list replaces cached decisions."""
    may, authority, _ = make()
    for number in range(READABLE_TOPICS_MAX + 10):
        assert may.may_read(b"a/%d" % number, READ_LIVE)
    authority.replace(parse(b"user ann\n", name="acl"))
    assert not may.may_read(b"a/1", READ_LIVE)


def test_history_that_is_under_way_is_judged_again() -> None:
    """A subscription that still reads history ends with the right to it; one that reads live continues."""
    may, authority, _ = make(b"user ann\ntopic read a/#\n")
    live, behind = source("a/live", 1), source("a/behind", 1)
    behind[1].live_from = 5
    assert may.revoked([live, behind]) == []
    authority.replace(parse(b"user ann\ntopic read history=no a/#\n", name="acl"))
    assert may.revoked([live, behind]) == ["a/behind"]
    behind[1].cursor = 5
    assert may.revoked([live, behind]) == []


def test_retained_messages_and_redeliveries_are_judged_by_topic() -> None:
    """They are checked one by one."""
    may, _, registry = make()
    assert may.may_be_given(b"a/x")
    assert not may.may_be_given(b"r/x")
    again = [Again(1, 5, 0, b"a/x"), Again(2, 5, 1, b"b"), Again(3, 5, 2, b"r/x"), Again(4, RETAINED_QUEUE, 9, b"r/x")]
    assert [one.packet_id for one in may.still_readable(again)] == [1, 3]
    assert registry.values()["rocketmq_mqtt_messages_skipped_total{not_authorized}"] == 2


async def test_an_identity_that_expires() -> None:
    """It is reported when its time has come, and not after the connection has ended."""
    for now_ms, closed, heard in ((5_000, False, True), (5_000, True, False), (4_990, False, True), (0, False, False)):
        registry = Registry()
        authority = Authority(parse(b"", name="acl"), clock=ManualClock(), counters=AccessCounters(registry))
        identity = Identity("ann", False, "c", until_ms=5_000)
        may = Permissions(authority, identity, ProxyMetrics(registry))  # type: ignore[arg-type]
        reasons: list[str] = []
        may.expires(ManualClock(now_ms), reasons.append)
        if closed:
            may.close()
        if heard:
            async with asyncio.timeout(10):
                while not reasons:
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # longer than the delays of the timers that must not fire
        assert bool(reasons) is heard, (now_ms, closed)
        assert all(reason.startswith("credentials_expired") for reason in reasons)
        may.close()
