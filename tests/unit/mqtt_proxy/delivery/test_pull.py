"""One pull at a time for all readers; each need is requested once and answered."""

from __future__ import annotations

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Rig, publish, running, settle


class Follower:
    """Records its calls."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def wake(self) -> None:
        self.told.append("wake")

    def jumped(self, feed: object, offset: int, to: int, reason: str) -> None:
        self.told.append((offset, to, reason))

    def queue_deleted(self, feed: object) -> None:
        self.told.append("gone")


async def filled(rig: Rig, topic: str, count: int) -> int:
    """A queue with messages; returns its id."""
    subscriber = await rig.subscriber("filler" + topic, (topic, 0))
    (source,) = subscriber.handler._delivery.sources
    queue_id = source.queue_id
    subscriber.lose()
    sender = await rig.client("p" + topic)
    sender.send(*[publish(topic, b"x", packet_id=number + 1) for number in range(count)])
    await settle()
    rig.broker.pulled.clear()
    return queue_id


async def test_the_needs_of_a_turn_share_a_request_and_go_once() -> None:
    """Two queues, three needs, one request; a need in flight is not requested again."""
    async with running() as rig:
        one, two = Follower(), Follower()
        feeds = [rig.tools.notifier.follow(await filled(rig, topic, 5), one) for topic in ("a", "b")]
        await settle()
        one.told.clear()
        for follower in (one, two):
            rig.tools.puller.need(feeds[0], 0, follower)
        rig.tools.puller.need(feeds[1], 2, one)
        await settle(0)
        rig.tools.puller.need(feeds[0], 0, two)
        await settle()
        assert rig.broker.pulled == [[(feeds[0].queue_id, 0), (feeds[1].queue_id, 2)]]
        assert (one.told, two.told) == (["wake", "wake"], ["wake"])
        found = rig.cache.find(feeds[1], 2)
        assert found is not None
        assert (found.first, found.next) == (2, 5)


async def test_a_pull_ends_where_the_cache_begins() -> None:
    """Nothing is pulled twice."""
    async with running() as rig:
        follower = Follower()
        feed = rig.tools.notifier.follow(await filled(rig, "a", 8), follower)
        await settle()
        rig.tools.puller.need(feed, 5, follower)
        await settle()
        rig.tools.puller.need(feed, 1, follower)
        rig.tools.puller.need(feed, 3, follower)
        await settle()
        assert [(one.first, one.next) for one in feed.chunks] == [(1, 3), (3, 5), (5, 8)]
        assert rig.count("pulled_records_total") == 7


async def test_moved_missing_and_refused() -> None:
    """Retention, a shorter log, damage, a deleted queue; after a refusal the request is repeated."""
    async with running() as rig:
        follower = Follower()
        queue_id = await filled(rig, "a", 8)
        feed = rig.tools.notifier.follow(queue_id, follower)
        await settle()
        rig.broker.trim(queue_id, 3)
        rig.broker.refuse[RequestCode.MULTI_PULL] = [Refused(2, "busy")]
        follower.told.clear()
        rig.tools.puller.need(feed, 0, follower)
        while "wake" not in follower.told:
            await settle(1)
        assert follower.told == [(0, 3, "retention"), "wake"]
        rig.tools.puller.need(feed, 11, follower)
        await settle()
        assert follower.told[2:] == [(11, 8, "log_shorter"), "wake"]
        rig.broker.damaged[queue_id] = {5, 6}
        rig.tools.puller.need(feed, 5, follower)
        await settle()
        assert follower.told[4:] == [(5, 7, "damaged"), "wake"]
        del follower.told[4:]
        del rig.broker.records[queue_id]
        rig.tools.puller.need(feed, 8, follower)
        await settle()
        assert follower.told[4:] == ["gone"]
