"""Which queues this proxy follows, and who hears of news in them.

FOLLOW tells the broker, once per loop turn, which queues were added and removed; its reply says how far each added
queue is confirmed, so that nothing stored between a subscription and its FOLLOW is overlooked. NOTIFY comes from the
broker, once per turn, with the new ends of followed queues and, for what is small, the records themselves: they go
into the cache when somebody is about to read them. After a reconnection everything is followed again.
Invariant: the broker's picture of what we follow is `feeds` minus what is still to be sent. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio

from mqtt_proxy.delivery.record_cache import Feed, QueueFollower, RecordCache, split_pushed
from mqtt_proxy.link import Link
from remoting.protocol.bodies.follow_body import decode_follow_reply, decode_notify, encode_follow
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.turn import soon
from runtime.logs import get_logger


class Notifier:
    """Follows queues on behalf of sessions."""

    def __init__(self, link: Link, cache: RecordCache) -> None:
        self.feeds: dict[int, Feed] = {}
        self._link = link
        self._cache = cache
        self._added: dict[int, None] = {}
        self._removed: dict[int, None] = {}
        self._scheduled = False
        self._log = get_logger("proxy.notify")
        link.on_push(RequestCode.NOTIFY, self._notified)
        link.on_up(self._follow_again)

    def follow(self, queue_id: int, follower: QueueFollower) -> Feed:
        """Hear of news in a queue until `unfollow`, which must be called as often."""
        feed = self.feeds.get(queue_id)
        if feed is None:
            feed = self.feeds[queue_id] = Feed(queue_id)
            # Also when the broker still follows it for us: only a FOLLOW says where it ends now.
            self._removed.pop(queue_id, None)
            self._added[queue_id] = None
            self._schedule()
        feed.join(follower)
        return feed

    def unfollow(self, feed: Feed, follower: QueueFollower) -> None:
        """The follower has one source less in this queue."""
        feed.leave(follower)
        if feed.is_followed:
            return
        del self.feeds[feed.queue_id]
        self._cache.drop_feed(feed)
        self._added.pop(feed.queue_id, None)
        self._removed[feed.queue_id] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            soon(self._send)

    def _follow_again(self) -> None:
        self._removed.clear()
        self._added = dict.fromkeys(self.feeds)
        self._schedule()

    def _send(self) -> None:
        self._scheduled = False
        if not self._link.up or not (self._added or self._removed):
            return
        added, removed = list(self._added), list(self._removed)
        self._added.clear()
        self._removed.clear()
        task = self._link.post(RequestCode.FOLLOW, encode_follow(added, removed), fields={"records": "all"})
        task.add_done_callback(lambda done: self._followed(added, done))

    def _followed(self, added: list[int], task: asyncio.Future[bytes]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:  # lost: followed again on reconnection; refused: our own bug, said loudly
            self._log.warning("follow_failed", queues=len(added), error=str(error))
            return
        for queue_id, max_offset in zip(added, decode_follow_reply(task.result()), strict=True):
            feed = self.feeds.get(queue_id)
            if feed is not None:
                feed.advance(max_offset)

    def _notified(self, command: Command) -> None:
        ends, records = decode_notify(command.body)
        feeds = self.feeds
        moved = []
        wanted = {}
        is_pushed = len(records) > 0
        for queue_id, end in ends:
            feed = feeds.get(queue_id)
            if feed is not None:
                moved.append((feed, end))
                if is_pushed and feed.is_near():
                    wanted[queue_id] = feed
        if wanted:  # into the cache, and they need not be pulled
            for chunk in split_pushed(records, wanted):
                self._cache.add(chunk)
        for feed, end in moved:
            feed.advance(end)
