"""Messages of one session: from the cursors of its sources into its in-flight window and its socket; and which session
delivers next (`Pump`).

Sources take turns, a slice each, so that a backlog behind one filter does not starve another. A QoS 1 message is taken
only when the window has room, any message only when the socket has; messages not taken are not buffered: a slow session
costs its cursors. QoS 0 subscribers read from the log in the same way. Messages of a topic keep their order: a source
never skips a message it cannot send yet, and overlapping subscriptions send each message once. `outbound` decides what
is sent for a message.

`Pump.wake` marks a session; at the end of the loop turn each marked session may deliver a bounded portion. One with
more to send, or whose socket was full (`later`), is behind and has its portion in the next turn, whatever else wakes
it: in between the loop reads and writes sockets, and serves sessions that are not behind. When few sessions are marked,
each may deliver several portions: otherwise one that follows a thousand devices would fall behind them, because all of
them are read between two of its turns.
Invariant: a cursor moves only with the message handed to the session; a woken session is pumped exactly once in the
next round, however often it was woken, and one that is behind once per turn of the loop. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from mqtt_proxy.delivery.offsets import OffsetCommitter
from mqtt_proxy.delivery.outbound import Outbound
from mqtt_proxy.delivery.pull import Puller
from mqtt_proxy.delivery.record_cache import Feed, Notifier, RecordCache
from mqtt_proxy.delivery.source import Source, send_run, settle
from mqtt_proxy.grants import Grant
from mqtt_proxy.metrics import ClientCounters, ProxyMetrics
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.shared import Memberships, SharedHub, SharedSource, SubscriberSession
from mqtt_proxy.tracing import ProxyTraces
from mqtt_proxy.traffic import Flow
from remoting.transport.turn import soon
from runtime.clock import Clock
from runtime.logs import get_logger

PORTIONS_PER_TURN = 16
"""Portions shared by the sessions of one turn, each of which has one at least."""


class Pumped(Protocol):
    """A session that delivers when the pump calls it."""

    def pump(self, portions: int) -> bool:
        """Deliver at most so many portions; True when more could be sent at once."""

    def failed(self) -> None:
        """Delivering raised an exception: close the session."""


class Pump:
    """The sessions that wait for their turn."""

    def __init__(self) -> None:
        self._ready: dict[Pumped, None] = {}
        self._behind: dict[Pumped, None] = {}
        self._scheduled = False
        self._log = get_logger("proxy.pump")

    def wake(self, session: Pumped) -> None:
        """Let a session deliver in the next turn; does nothing for one that is behind, which delivers anyway."""
        if session in self._behind:
            return
        self._ready[session] = None
        if not self._scheduled:
            self._scheduled = True
            soon(self._run)

    def later(self, session: Pumped) -> None:
        """Let a session deliver in the next turn of the loop: it has a backlog."""
        if session in self._ready:
            return
        if not self._behind:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._behind[session] = None

    def forget(self, session: Pumped) -> None:
        """The session has ended."""
        self._ready.pop(session, None)
        self._behind.pop(session, None)

    def _run(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, {}
        portions = max(1, PORTIONS_PER_TURN // len(ready)) if ready else 1
        for session in ready:
            try:
                more = session.pump(portions)
            except Exception as error:  # noqa: BLE001 - one session's fault must not stop the others
                self._log.error("delivery_failed", error=repr(error), exc_info=error)
                session.failed()
                continue
            if more:
                self.later(session)

    def _go_on(self) -> None:
        behind, self._behind = self._behind, {}
        for session in behind:
            self.wake(session)


class DeliveryTools:
    """Shared by all sessions' deliveries."""

    __slots__ = ("cache", "clock", "metrics", "notifier", "offsets", "puller", "pump", "shared", "traces")

    def __init__(
        self,
        cache: RecordCache,
        notifier: Notifier,
        puller: Puller,
        pump: Pump,
        offsets: OffsetCommitter,
        metrics: ProxyMetrics,
        clock: Clock,
        shared: SharedHub,
        traces: ProxyTraces | None = None,
    ) -> None:
        self.traces = traces
        self.cache = cache
        self.clock = clock
        self.notifier = notifier
        self.puller = puller
        self.pump = pump
        self.offsets = offsets
        self.metrics = metrics
        self.shared = shared


PORTION_MESSAGES_MAX = 256
"""Messages in one portion."""
PORTION_BYTES_MAX = 64 * 1024
"""Payload bytes in one portion; one message may exceed it. A slow socket has one portion a turn and buffers as much
above its mark, and a message written in part as a whole; of many that have room again at once each has one before any
has two."""
SLICE_MESSAGES_MAX = 16
"""Messages one source may send before the session's next source."""

FEW_SOURCES = 4
"""Up to so many sources are searched one by one; for more there is a table."""
WINDOW_BEGIN = 1_024
"""Messages in flight to a client at first; a client that acknowledges half of them in one read while it is behind may
have twice as many, up to `in_flight_max`, until its socket is full."""

LOG = get_logger("proxy.delivery")

Token = tuple[DeliveryOrigin, int]
"""Identifies a delivery until it is acknowledged: where its message lies."""


class Flushed(Protocol):
    """Where deliveries are written."""

    def flush(self) -> None:
        """Write them at the end of the turn."""


class DeliveryOwner(Protocol):
    """Client id of the session whose deliveries these are."""

    def give_up(self, reason: str) -> None:
        """End the connection."""


class Delivery:
    """The outgoing half of one session."""

    __slots__ = (
        "_by_queue", "_flow", "_out", "_owner", "_running", "_sent", "_serial", "_session", "_slow", "_tools",
        "_turn", "_window_most", "_writable", "committed_key", "memberships", "outbound", "sources",
    )  # fmt: skip

    def __init__(
        self, session: Session, tools: DeliveryTools, out: Flushed, owner: DeliveryOwner, counters: ClientCounters,
        flow: Flow,
    ) -> None:  # fmt: skip
        self._session = session.state
        self._tools = tools
        self._out = out
        self._sent = counters.sent
        self._flow = flow
        self._owner: DeliveryOwner | None = owner
        self._running = False
        self._writable = True
        self._slow = False
        """Whether its socket was full since it last was up to date."""
        self._turn = self._window_most = 0
        self._serial = 0
        self.sources: list[Source] = []
        self._by_queue: dict[int, Source] | None = None
        """Queue id -> source, once there are many."""
        self.committed_key: bytes | None = None
        """The key offsets are committed under; None when the session is not durable."""
        self.outbound = Outbound(session, tools.metrics, tools.clock, self.sources, tools.traces)
        self.memberships: Memberships | None = None
        """Its shared subscriptions, once it has one."""

    # -- sources -------------------------------------------------------------------------------------------------------

    def add(self, topic_filter: str, queue_id: int, grant: Grant, cursor: int) -> Source:
        """A subscription begins at `cursor`."""
        feed = self._tools.notifier.follow(queue_id, self)
        self._serial += 1
        source = Source(topic_filter, feed, grant, cursor, self._serial)
        self.sources.append(source)
        if self._by_queue is not None:
            self._by_queue[queue_id] = source
        elif len(self.sources) > FEW_SOURCES:
            self._by_queue = {one.queue_id: one for one in self.sources}
        self._tools.metrics.subscriptions.open.value += 1
        self.wake()
        return source

    def remove(self, source: Source) -> None:
        """A subscription ends; what is in flight from it stays in flight."""
        self.sources.remove(source)
        self._tools.metrics.subscriptions.open.value -= 1
        if self._by_queue is not None and self._by_queue.get(source.queue_id) is source:
            del self._by_queue[source.queue_id]
        self._tools.notifier.unfollow(source.feed, self)
        self.wake()  # a younger source may have waited for this one

    def join(self, topic_filter: str, queue_id: int, grant: Grant, client_id: str, epoch: int) -> SharedSource:
        """A shared subscription begins."""
        if self.memberships is None:
            member = SubscriberSession(client_id, epoch, self._session.outgoing, self.wake, self._writable)
            self.memberships = Memberships(self._tools.shared, member)
        return self.memberships.add(topic_filter, queue_id, grant, epoch)

    def start(self) -> None:
        """The session is accepted: deliver from now on."""
        outgoing = self._session.outgoing
        self._window_most = outgoing.in_flight_max
        outgoing.in_flight_max = min(WINDOW_BEGIN, self._window_most)
        self._running = True
        self.wake()

    def stop(self) -> None:
        """The session has ended; its sources stay readable until `release`."""
        self._running = False
        self._tools.pump.forget(self)

    def release(self) -> None:
        """Follow nothing any more, and drop the reference to the client."""
        self._tools.metrics.subscriptions.open.value -= len(self.sources)
        for source in list(self.sources):
            self.sources.remove(source)
            self._tools.notifier.unfollow(source.feed, self)
        self._by_queue = None
        if self.memberships is not None:
            self.memberships.release()
        self._owner = None

    def reader_of(self, queue_id: int) -> Source | None:
        """The youngest source that reads this queue."""
        if self._by_queue is not None:
            return self._by_queue.get(queue_id)
        found = None
        for source in self.sources:
            if source.queue_id == queue_id:
                found = source
        return found

    # -- waking a session ----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Deliver in the next turn."""
        if self._running:
            self._tools.pump.wake(self)

    @property
    def writable(self) -> bool:
        """Whether the socket accepts deliveries."""
        return self._writable

    def set_writable(self, writable: bool) -> None:
        """The socket's buffer went above its mark, or below it again."""
        self._writable = writable
        if self.memberships is not None:
            self.memberships.set_writable(writable)
        if not writable:
            self._slow = True
            if self._running:
                self._session.outgoing.in_flight_max = min(WINDOW_BEGIN, self._window_most)
        elif self._running:
            self._tools.pump.later(self)

    def acknowledged(self, tokens: Iterable[object]) -> None:
        """The client has acknowledged these."""
        self._tools.metrics.deliveries.acknowledged.value += settle(tokens)
        if self.memberships is not None:
            self.memberships.room_again()
        if self.committed_key is not None:
            self._tools.offsets.mark(self)
        sources = self.sources
        if len(sources) == 1:
            source = sources[0]
            if source.cursor >= source.feed.max_offset and not source.waits:
                return
        if self._session.outgoing.in_flight_max < self._window_most and not self._slow:
            self._widen()
        self.wake()

    def _widen(self) -> None:
        """Allow more messages in flight to a client that acknowledges quickly."""
        outgoing = self._session.outgoing
        if 2 * len(outgoing.window) <= outgoing.in_flight_max:
            outgoing.in_flight_max = min(2 * outgoing.in_flight_max, self._window_most)

    def jumped(self, feed: Feed, offset: int, to: int, reason: str) -> None:
        """Records at a cursor were deleted, or the log ends before it."""
        source = self.reader_of(feed.queue_id)
        if source is not None and source.cursor == offset and to != offset:
            self.outbound.removed.count(reason, max(0, to - offset))
            source.cursor = to
            source.chunk = None

    def queue_deleted(self, feed: Feed) -> None:
        """A queue was deleted under a subscription: the connection is closed, so that the client subscribes again."""
        source = self.reader_of(feed.queue_id)
        if source is not None:
            self.outbound.removed.count("queue_gone")
            self._give_up(f"queue_gone: queue {feed.queue_id} of {source.filter}")

    def lag(self, feed: Feed) -> int:
        """How many records of this queue it has yet to be given."""
        source = self.reader_of(feed.queue_id)
        return feed.max_offset - source.cursor if source is not None else 0

    def _give_up(self, reason: str) -> None:
        if self._owner is not None:
            self._owner.give_up(reason)

    def failed(self) -> None:
        """Delivering raised an exception."""
        self._give_up("internal_error: delivery failed")

    # -- delivering ----------------------------------------------------------------------------------------------------

    def pump(self, portions: int) -> bool:
        """Deliver so many portions, a slow socket one; True when more could be sent at once."""
        # A socket that broke in this turn has closed its session already and is reported in the next.
        if not self._running or not self._writable or self._session.close_reason is not None:
            return False
        if self._session.outgoing.must_wait(self.wake):
            return False
        slow = self._slow
        if slow:
            portions = 1
        messages = portions * PORTION_MESSAGES_MAX
        self.outbound.budget_bytes = portions * PORTION_BYTES_MAX
        source = self.sources[0] if len(self.sources) == 1 else None
        if source is not None and self.memberships is None and source.retained is None and source.history is None:
            more = self._pump_one(source, messages)
        else:
            more = self._pump_all(messages)
        if slow and not more:
            self._slow = self._is_behind()
        return more

    def _is_behind(self) -> bool:
        """Whether any source has not been given everything."""
        return any(source.cursor < source.feed.max_offset for source in self.sources)

    def _pump_all(self, portion: int) -> bool:
        """Deliver up to `portion` messages of all sources in turns."""
        left = portion
        outbound = self.outbound
        moved = True
        while moved and left > 0 and outbound.budget_bytes > 0:
            moved = False
            sources = self.sources
            for _ in range(len(sources)):
                self._turn = (self._turn + 1) % len(sources)
                source = sources[self._turn]
                before = source.cursor
                sent = self._send_of(source, left if len(sources) == 1 else min(left, SLICE_MESSAGES_MAX))
                left -= sent
                # A second pass is for what a slice left, or another source passed over; most often nothing is left.
                if sent > 0 or source.cursor != before:
                    rest = source.cursor < source.feed.max_offset or source.waits
                    moved = moved or rest or len(sources) > 1
                if left <= 0 or outbound.budget_bytes <= 0:
                    break
        if self.memberships is not None:
            left -= self.memberships.send(outbound, left)
        self._account(portion - left)
        return left <= 0 or outbound.budget_bytes <= 0

    def _send_of(self, source: Source, portion: int) -> int:
        """Send up to `portion` messages: retained ones, those from before the queue, those at the cursor."""
        sent = self.outbound.send_retained(source, source.retained, portion) if source.retained is not None else 0
        if source.retained is not None:
            return sent
        if source.history is None or not source.history.active:
            return sent + self._take(source, portion - sent)
        sent += self.outbound.send_history(source, source.history, portion - sent)
        if self.committed_key is None and not source.history.active:
            source.history = None  # with a key, once its end is committed
        return sent

    def _pump_one(self, source: Source, portion: int) -> bool:
        """As `_pump_all`, for a session with one subscription and nothing else to deliver."""
        outbound = self.outbound
        left = portion
        feed = source.feed
        newest = feed.chunks[-1] if feed.chunks else None
        if newest is not None and newest.first <= source.cursor < newest.next and source.grant.is_plain:
            # The usual case: the next message is among the newest.
            sent, spent, _special = send_run(self._session, source, newest, left, outbound.budget_bytes)
            outbound.budget_bytes -= spent
            left -= sent
            if source.cursor >= newest.next and feed.only is not None:
                # No other session needs it: an old chunk is freed slowly, because it has left the caches.
                self._tools.cache.drop(newest)
        while source.cursor < feed.max_offset and left > 0 and outbound.budget_bytes > 0:
            before = source.cursor
            left -= self._take(source, left)
            if source.cursor == before:
                break
        self._account(portion - left)
        return left <= 0 or outbound.budget_bytes <= 0

    def _account(self, sent: int) -> None:
        if sent:
            self._sent.value += sent
            self._flow.add_messages(sent)
            self._out.flush()
        if self.committed_key is not None:
            self._tools.offsets.mark(self)

    def _take(self, source: Source, portion: int) -> int:
        """Send up to `portion` messages at the source's cursor; returns how many were sent."""
        feed = source.feed
        offset = source.cursor
        if offset >= feed.max_offset or portion <= 0:
            return 0
        chunk = source.chunk
        if chunk is None or not chunk.first <= offset < chunk.next:
            chunk = source.chunk = self._tools.cache.find(feed, offset)
            if chunk is None:
                self._tools.puller.need(feed, offset, self)
                return 0
        alone = len(self.sources) == 1
        sent = self.outbound.send_slice(source, chunk, offset - chunk.first, portion, alone=alone)
        if source.cursor >= chunk.next:
            source.chunk = None
            if source.cursor < feed.max_offset:
                self._tools.puller.need(feed, source.cursor, self)
        return sent
