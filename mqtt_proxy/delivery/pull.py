"""Pulls for all sessions of the proxy: one request in flight, for every queue a session waits for.

A session without the record at its cursor calls `need(feed, offset)`. While a MULTI_PULL is in flight further needs
gather; the next request carries them all, each (queue, offset) once however many sessions wait for it. The answer goes
into the shared cache and wakes the sessions that wait. A pull ends where a cached chunk begins, so nothing is pulled
twice. After a loss of the broker connection unanswered needs are requested again.
Invariant: every need is answered by a wake, a jump or `queue_deleted`, or is still gathered. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
import functools

from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.delivery.record_cache import Chunk, Feed, QueueFollower, RecordCache
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from remoting.protocol.bodies.pull_body import (
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_LARGE,
    STATUS_OFFSET_TOO_SMALL,
    PulledQueue,
    decode_multi_pull_reply,
    encode_multi_pull,
)
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.transport.turn import soon
from runtime.logs import get_logger

REPLY_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of all queues in one answer: far below a frame's limit, so that one slow reader of large messages does not
delay the pulls of others."""
QUEUE_BYTES_MIN = 8_192
"""The least that is requested of one queue, however many share a request."""
REFUSED_PAUSE_S = 0.2
"""Pause before a pull that the broker refused is repeated."""

Need = tuple[Feed, int]


class Puller:
    """Gathers needs and pulls. One per broker link."""

    def __init__(self, link: Link, cache: RecordCache, config: ProxyConfig, metrics: ProxyMetrics) -> None:
        self._link = link
        self._cache = cache
        self._metrics = metrics
        self._records_max = config.pull_records_max
        self._bytes_max = config.pull_bytes_max
        self._queues_max = config.pull_queues_max
        self._needs: dict[Need, dict[QueueFollower, None]] = {}
        self._under_way: dict[Need, dict[QueueFollower, None]] = {}
        self._busy = False
        self._scheduled = False
        self._log = get_logger("proxy.pull")
        link.on_up(self._schedule)

    def need(self, feed: Feed, offset: int, follower: QueueFollower) -> None:
        """A session waits for the record at this offset, which the broker has confirmed."""
        waiting = self._under_way.get((feed, offset)) or self._needs.get((feed, offset))
        if waiting is None:
            self._needs[feed, offset] = {follower: None}
            self._schedule()
        else:
            waiting[follower] = None

    def _schedule(self) -> None:
        if not self._scheduled and not self._busy and self._needs:
            self._scheduled = True
            soon(self._send)

    def _send(self) -> None:
        self._scheduled = False
        if self._busy or not self._link.up:
            return
        taken = {}
        for need in list(self._needs)[: self._queues_max]:
            followers = self._needs.pop(need)
            if need[0].is_followed:
                taken[need] = followers
        if not taken:
            return
        self._busy = True
        self._under_way = taken
        self._metrics.deliveries.pulls.value += 1
        body = encode_multi_pull(self._requests(taken))
        self._link.call(RequestCode.MULTI_PULL, body, functools.partial(self._answered, taken))

    def _requests(self, taken: dict[Need, dict[QueueFollower, None]]) -> list[tuple[int, int, int, int]]:
        bytes_max = max(QUEUE_BYTES_MIN, min(self._bytes_max, REPLY_BYTES_MAX // len(taken)))
        requests = []
        for feed, offset in taken:
            ends = [other for same, other in taken if same is feed and other > offset] if len(taken) > 1 else []
            known = feed.next_known(offset)
            if known is not None:
                ends.append(known)
            count = min(self._records_max, min(ends) - offset) if ends else self._records_max
            requests.append((feed.queue_id, offset, count, bytes_max))
        return requests

    def _answered(self, taken: dict[Need, dict[QueueFollower, None]], body: bytes, error: Exception | None) -> None:
        self._busy = False
        self._under_way = {}
        if error is None:
            try:
                results = decode_multi_pull_reply(body)
                for (need, followers), result in zip(taken.items(), results, strict=True):
                    self._take(need, followers, result)
            except (LightMQError, ValueError) as unreadable:
                self._repeat(taken, unreadable)
            else:
                self._schedule()
        else:
            self._repeat(taken, error)

    def _repeat(self, taken: dict[Need, dict[QueueFollower, None]], error: Exception) -> None:
        """Request again: at the next connection, or after a pause when this one refused."""
        self._log.warning("pull_failed", queues=len(taken), error=str(error))
        for (feed, offset), followers in taken.items():
            for follower in followers:
                self._needs.setdefault((feed, offset), {})[follower] = None
        if isinstance(error, (Refused, ValueError)) or self._link.up:
            asyncio.get_running_loop().call_later(REFUSED_PAUSE_S, self._schedule)

    def _take(self, need: Need, followers: dict[QueueFollower, None], result: PulledQueue) -> None:
        feed, offset = need
        if not feed.is_followed:
            return
        if result.status == STATUS_NO_SUCH_QUEUE:
            for follower in followers:
                follower.queue_deleted(feed)
            return
        feed.max_offset = result.max_offset
        if result.count:
            self._metrics.deliveries.pulled.value += result.count
            self._cache.add(Chunk(feed, result.first_offset, result.blob))
        if result.status == STATUS_OFFSET_TOO_SMALL:
            self._jump(feed, offset, result.first_offset, "retention", followers)
        elif result.status == STATUS_OFFSET_TOO_LARGE:
            self._jump(feed, offset, result.max_offset, "log_shorter", followers)
        elif result.status == STATUS_DAMAGED:
            self._jump(feed, offset, result.first_offset, "damaged", followers)
        for follower in followers:
            follower.wake()

    def _jump(self, feed: Feed, offset: int, to: int, reason: str, followers: dict[QueueFollower, None]) -> None:
        self._log.warning("offset_moved", queue_id=feed.queue_id, offset=offset, to=to, reason=reason)
        for follower in followers:
            follower.jumped(feed, offset, to, reason)
