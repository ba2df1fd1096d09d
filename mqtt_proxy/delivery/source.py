"""One subscription's position in one queue, and runs of plain messages sent from there.

A session costs a number per subscription, not a buffer: `cursor` is the next queue offset to send, `unacked` the
offsets sent and not yet acknowledged (at most the in-flight window); the lowest of both is committed.
Most deliveries need only head, packet id and payload: for `send_run`, `packets.core.write_run` builds those of a whole
run in one call, straight from a chunk's records into a session's output. QoS 0 packets are the same for every
subscriber at the same position, so the chunk keeps the last ones and the next session sends the same bytes. Records
that are not plain are left to the caller.

Invariant: `unacked` is in rising order and every member is below `cursor`, so `lowest()` never passes a message that
the client may not have; cursor, window and unacknowledged offsets move with the packets written. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from mqtt_proxy.delivery.record_cache import Chunk, Feed
from mqtt_proxy.grants import Grant
from mqtt_proxy.history import HistoryRun
from mqtt_proxy.mqtt.codec.limits import PACKET_SIZE_BYTES_MAX
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin
from mqtt_proxy.mqtt.session.session_state import SessionState
from mqtt_proxy.retained import RetainedRun
from remoting.native import packets
from remoting.native.contracts import FULL, SPECIAL, Written


def settle(tokens: Iterable[Any]) -> int:
    """The client has acknowledged these deliveries, (origin, offset) pairs; returns how many."""
    count = 0
    for origin, offset in tokens:
        origin.acknowledge(offset)
        count += 1
    return count


class ExactRange:
    """Offsets that were sent with QoS 2 on earlier connections, as far as that is the QoS of their messages."""

    __slots__ = ("below", "first", "in_flight")

    def __init__(self, first: int, below: int) -> None:
        """From `first` up to `below` (exclusive)."""
        self.first = first
        self.below = below
        self.in_flight: set[int] = set()
        """Those ahead of the cursor that the client may not have."""


class Source(DeliveryOrigin):
    """One subscription of one session."""

    __slots__ = (
        "chunk",
        "committed",
        "cursor",
        "exact",
        "feed",
        "filter",
        "grant",
        "history",
        "live_from",
        "retained",
        "serial",
        "shadows",
        "start",
        "unacked",
    )

    def __init__(self, topic_filter: str, feed: Feed, grant: Grant, cursor: int, serial: int) -> None:
        super().__init__(feed.queue_id)
        self.filter = topic_filter
        self.feed = feed
        self.grant = grant
        self.cursor = self.start = self.committed = cursor
        self.live_from = 0
        """What lies below is requested history: sent whatever other subscriptions match it."""
        self.serial = serial
        """Age among the session's sources: the lowest delivers a message that several match."""
        self.chunk: Chunk | None = None
        self.unacked: dict[int, None] = {}
        self.shadows: dict[int, list[tuple[Source, int]]] | None = None
        """Offset here -> positions of the same message in younger sources, which passed over it."""
        self.history: HistoryRun | None = None
        """Messages from before the queue that go out before anything at the cursor."""
        self.retained: RetainedRun | None = None
        """Retained messages that go out before anything at the cursor."""
        self.exact: ExactRange | None = None
        """What was sent with QoS 2 before a crash, while the cursor may be below it."""

    @property
    def waits(self) -> bool:
        """Whether something is to be sent before the record at the cursor."""
        return self.retained is not None or (self.history is not None and self.history.active)

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`, and therefore its copies in younger sources."""
        self.unacked.pop(offset, None)
        if self.exact is not None:
            self.exact.in_flight.discard(offset)
        if self.shadows:
            for source, copy in self.shadows.pop(offset, ()):
                source.unacked.pop(copy, None)

    def sent_before(self, offset: int) -> None:
        """A delivery of the session's previous connection is still in flight."""
        if offset < self.cursor:
            self.unacked[offset] = None
        elif self.exact is not None:
            self.exact.in_flight.add(offset)

    def is_exact(self, offset: int) -> bool:
        """Whether a QoS 2 message at the cursor was sent before; it is in flight, or the client has it."""
        exact = self.exact
        if exact is None or not exact.first <= offset < exact.below:
            return False
        if offset in exact.in_flight:
            exact.in_flight.discard(offset)
            self.unacked[offset] = None
        return True

    def leave_to(self, other: Source, offset: int, other_offset: int) -> None:
        """Pass over the message at `offset`, which `other` has sent; it is unacknowledged here while it is there."""
        if other_offset in other.unacked:
            self.unacked[offset] = None
            if other.shadows is None:
                other.shadows = {}
            other.shadows.setdefault(other_offset, []).append((self, offset))

    def lowest(self) -> int:
        """The offset to commit: the client has everything below it."""
        for offset in self.unacked:
            return offset
        return self.cursor


Shared = tuple[tuple[int, int, int, int, int], Written]
"""A run's key (index, portion, QoS, level, bytes that may be begun) and its packets."""


def send_run(session: SessionState, source: Source, chunk: Chunk, portion: int, budget: int) -> tuple[int, int, bool]:
    """Send up to `portion` plain messages at the source's cursor; returns (how many, payload bytes, whether the next is
    not plain).
    """
    terms, outgoing = session.terms, session.outgoing
    if outgoing.aliases is not None or terms.packet_size_out_max != PACKET_SIZE_BYTES_MAX:
        return 0, 0, True  # its packets differ from those of others of its level
    offset = source.cursor
    key = (offset - chunk.first, portion, source.grant.qos, terms.level, budget)
    shared = cast("Shared | None", chunk.shared)
    if shared is not None and shared[0] == key:
        written = shared[1]
    else:
        free = max(0, outgoing.in_flight_max - len(outgoing.window))
        written = packets.core.write_run(
            chunk.blob, chunk.starts, offset - chunk.first, portion, source.grant.qos, terms.level, free, budget,
            outgoing.last_id, outgoing.window, source.unacked, source, offset,
        )  # fmt: skip
        outgoing.last_id = written[4]
        if written[1] and not written[2] and written[5] != FULL:  # it is this session's window that is full
            chunk.shared = key, written
    output, taken, _with_qos, spent, _last_id, reason = written
    if taken:
        lane = outgoing.lane()
        if lane is None:
            session.out.append(output)
        else:
            lane.follow((output,))
        source.cursor = offset + taken
    return taken, spent, reason == SPECIAL
