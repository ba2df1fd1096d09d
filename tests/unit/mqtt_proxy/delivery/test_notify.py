"""Queues are followed once, unfollowed with the last follower, and followed again after a loss."""

from __future__ import annotations

from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import running, settle


class Follower:
    """Counts its wake-ups."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def jumped(self, feed: object, offset: int, to: int, reason: str) -> None:
        raise AssertionError

    def queue_deleted(self, feed: object) -> None:
        raise AssertionError


async def test_follow_and_unfollow() -> None:
    """One FOLLOW per turn; its reply says where the queue ends."""
    async with running() as rig:
        notifier, queue_id = rig.tools.notifier, rig.broker.queue(b"q")
        rig.broker.records[queue_id] += [b"", b""]
        first, second = Follower(), Follower()
        feed = notifier.follow(queue_id, first)
        assert notifier.follow(queue_id, second) is feed
        await settle()
        assert rig.broker.codes.count(RequestCode.FOLLOW) == 1
        assert (feed.max_offset, first.woken, second.woken) == (2, 1, 1)
        notifier.unfollow(feed, first)
        notifier.unfollow(feed, second)
        await settle()
        assert list(rig.broker.followed.values()) == [set()]


async def test_left_and_followed_again_in_one_turn() -> None:
    """The broker is asked for the end again."""
    async with running() as rig:
        notifier, queue_id = rig.tools.notifier, rig.broker.queue(b"q")
        feed = notifier.follow(queue_id, Follower())
        await settle()
        rig.broker.records[queue_id].append(b"")
        notifier.unfollow(feed, next(iter(feed.followers)))
        again = notifier.follow(queue_id, Follower())
        await settle()
        assert again.max_offset == 1
        assert list(rig.broker.followed.values()) == [{queue_id}]


async def test_everything_is_followed_again_after_a_loss() -> None:
    """And what came meanwhile is heard of."""
    async with running() as rig:
        queue_id, follower = rig.broker.queue(b"q"), Follower()
        feed = rig.tools.notifier.follow(queue_id, follower)
        await settle()
        await rig.broker.connections[0].close()
        await settle(5)
        rig.broker.records[queue_id].append(b"")
        while not rig.link.up:
            await settle(1)
        await settle()
        assert (feed.max_offset, follower.woken) == (1, 1)
