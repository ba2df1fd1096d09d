"""The `$SYS` tree: served by the proxy itself, never stored.

A subscription whose filter begins with `$SYS/` is an ordinary one for the broker, which thereby keeps it in durable
sessions; its queue stays empty, because nobody may publish there. What it is given comes from here: after the SUBACK,
or after the CONNACK of a resumed session, all values it matches with the retain flag, later those that changed, all at
QoS 0. `#` and `+/...` do not match, as the standard says of topics that begin with `$`.

A subscriber that is slow is left out for a while and then given what has changed since: of a value only the newest
counts, so that nothing waits in memory and nothing is lost that is still true.
Invariant: one timer and one request per interval, however many follow. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from mqtt_proxy.link.link import Link
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.sys_topics.values import SysValues
from remoting.access.rules import READ_LIVE, READ_RETAINED
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.topics import matches
from runtime.logs import get_logger

PREFIX = "$SYS/"

LOG = get_logger("proxy.sys")


class SysFollower:
    """The `$SYS` filters of one session."""

    __slots__ = ("_flush", "_may_read", "_session", "_tree", "_writable", "filters", "seen")

    def __init__(
        self,
        tree: SysTree,
        session: Session,
        flush: Callable[[], None],
        writable: Callable[[], bool],
        may_read: Callable[[bytes, int], bool],
    ) -> None:
        self._tree = tree
        self._session = session
        self._flush = flush
        self._writable = writable
        self._may_read = may_read
        self.filters: dict[str, int] = {}
        """Filter -> subscription identifier, 0 for none."""
        self.seen = 0
        """The round it has been given everything of."""

    def follow(self, topic_filter: str, subscription_id: int = 0, *, with_values: bool = True) -> None:
        """Send changes of what the filter matches from now on, and all values as retained messages now if wanted."""
        self.filters[topic_filter] = subscription_id
        self._tree.follow(self, topic_filter if with_values else None)

    def unfollow(self, topic_filter: str) -> None:
        """The filter was unsubscribed; it need not be one of these."""
        if topic_filter in self.filters:
            del self.filters[topic_filter]
            if not self.filters:
                self._tree.unfollow(self)

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self._session.state.close_reason is not None

    @property
    def takes(self) -> bool:
        """Whether it can be sent something now."""
        return not self.ended and self._writable()

    def send_matching(self, topic_filter: str, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Send those of these values that this filter matches, as retained messages."""
        ids = [self.filters[topic_filter]] if self.filters[topic_filter] else []
        for topic, value in values:
            if matches(topic_filter, topic) and self._may_read(topic, READ_RETAINED):
                self._session.deliveries.deliver(topic, value, 0, True, False, None, None, ids)
        self._flush()

    def send_changed(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Send those of these values that some filter matches, once each, with the identifiers of all that do."""
        for topic, value in values:
            found = [each for topic_filter, each in self.filters.items() if matches(topic_filter, topic)]
            if found and self._may_read(topic, READ_LIVE):
                ids = [each for each in found if each]
                self._session.deliveries.deliver(topic, value, 0, False, False, None, None, ids)
        self._flush()


class SysTree:
    """All followers, the newest values, and when each changed."""

    def __init__(self, values: SysValues, link: Link, *, interval_s: int) -> None:
        self._values = values
        self._link = link
        self._interval_s = interval_s
        self._followers: dict[SysFollower, None] = {}
        self._newest: dict[bytes, tuple[bytes, int]] = {}
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Future[bytes] | None = None

    def __len__(self) -> int:
        return len(self._followers)

    def start(self) -> None:
        """Read the values, ask the broker for its own, and so again every interval; nothing with an interval of 0."""
        if self._interval_s:
            self._read(self._round)
            self._ask()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def follower(
        self,
        session: Session,
        flush: Callable[[], None],
        writable: Callable[[], bool],
        may_read: Callable[[bytes, int], bool],
    ) -> SysFollower:
        """The follower of a session, which follows nothing yet."""
        return SysFollower(self, session, flush, writable, may_read)

    def follow(self, follower: SysFollower, topic_filter: str | None) -> None:
        """Tell it of changes; send the present values that this filter matches."""
        if not self._interval_s:
            return
        if follower not in self._followers:
            follower.seen = self._round
            self._followers[follower] = None
        if topic_filter is not None:
            follower.send_matching(topic_filter, ((topic, value) for topic, (value, _) in self._newest.items()))

    def unfollow(self, follower: SysFollower) -> None:
        """It follows nothing any more."""
        self._followers.pop(follower, None)

    def _tick(self) -> None:
        self._round += 1
        self._values.sample()
        self.start()
        for follower in [one for one in self._followers if one.ended]:
            del self._followers[follower]
        for follower in self._followers:
            if follower.takes:
                self._tell(follower)

    def _tell(self, follower: SysFollower) -> None:
        changed = [(topic, value) for topic, (value, since) in self._newest.items() if since > follower.seen]
        follower.seen = self._round
        if changed:
            follower.send_changed(changed)

    def _read(self, told_in: int) -> None:
        """Note which values changed, to be told in this round."""
        for topic, value in self._values.read().items():
            known = self._newest.get(topic)
            if known is None or known[0] != value:
                self._newest[topic] = (value, told_in)

    def _ask(self) -> None:
        """Ask the broker for its numbers: there for who subscribes from then on, told to others in the next round."""
        if self._link.up and (self._asking is None or self._asking.done()):
            self._asking = self._link.post(RequestCode.CLUSTER_STATUS, b"")
            self._asking.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Future[bytes]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            LOG.debug("broker_status_unknown", error=str(error))
            return
        try:
            status = msgspec.json.decode(task.result(), type=dict[str, object])
        except msgspec.DecodeError as problem:
            LOG.warning("broker_status_unreadable", error=str(problem))
            return
        self._values.set_broker_status(status)
        self._read(self._round + 1)
