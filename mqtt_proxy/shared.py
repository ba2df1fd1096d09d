"""Shared subscriptions: one session's memberships in groups, and the proxy's requests to the broker about all of them.

The broker decides which member gets a message and pushes it; a member (`SharedSource`) reports how many more it can
take, which is the free part of its session's window. A message is done when the client has acknowledged it (QoS 0: when
it was written to the socket), has expired, or is too large for the client; one that finds the window or the socket full
waits, and is returned to the broker for another member when that takes long. A message sent with QoS 2 is never given
to another member: a durable session has noted it (`exact`), for others the broker is informed.
The reports of all members in one loop turn are one SHARED_SETTLE (`SharedHub`). After the broker was lost a member
joins again under a new handle and names what its client still has to acknowledge. The members of one session take turns
in sending and share its window (`Memberships`).

Invariant: an offset given to a member is in exactly one of `waiting`, `unacked` and the report's `done`, `back` and
`refused` until it is reported; a handle names one member of one connection to the broker.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mqtt_proxy.grants import Grant
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import QOS_2
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin, Outgoing
from remoting.access.rules import READ_LIVE
from remoting.protocol.bodies.session_body import (
    SHARED_BIT,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    decode_given,
    encode,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import FLAG_RETAIN, RecordView
from remoting.transport.turn import soon
from runtime.logs import get_logger

WINDOW_MAX = 64
"""Most messages given to one member; a smaller window of its client takes precedence."""
TOP_UP_SHARE = 4
"""A member with nothing else to report requests more once this fraction (1/n) of its window is free."""


class MemberCalls(Protocol):
    """What a member calls to reach the broker: the hub."""

    def mark(self, source: SharedSource) -> None:
        """The member has something to report at the end of the turn."""

    def watch(self, source: SharedSource) -> None:
        """The member has messages that it cannot send now."""


class MessageSender(Protocol):
    """Sends messages to the client: the outgoing half of its session."""

    budget_bytes: int
    may_read: Callable[[bytes, int], bool]

    def send(
        self,
        record: RecordView,
        topic: bytes,
        payload: bytes | memoryview,
        qos: int,
        retain: bool,
        token: object,
        subscription_ids: Sequence[int] = (),
    ) -> bool:
        """Send a message; False when it cannot be sent to this client any more."""


@dataclass(slots=True)
class SubscriberSession:
    """What the memberships of one session have in common."""

    client_id: str
    epoch: int
    """Of the session's present connection to the broker."""
    outgoing: Outgoing
    wake: Callable[[], None]
    """Lets the session deliver."""
    writable: bool = True
    """Whether its socket accepts messages."""
    sharers: int = 1
    """How many memberships share its window."""

    @property
    def room(self) -> int:
        """The part of the free window that one membership may fill."""
        return -(-self.outgoing.free // self.sharers)


class SharedSource(DeliveryOrigin):
    """One session's membership in one group."""

    noted = False  # the group gives them to another member; QoS 2 deliveries are noted before they are sent
    flow_bit = SHARED_BIT

    __slots__ = (
        "_hub", "credit", "exact", "filter", "grant", "handle", "leaving", "report", "session", "unacked", "waiting",
    )  # fmt: skip

    def __init__(
        self, hub: MemberCalls, session: SubscriberSession, topic_filter: str, queue_id: int, grant: Grant
    ) -> None:
        super().__init__(queue_id)
        self._hub = hub
        self.session = session
        self.filter = topic_filter
        self.grant = grant
        self.handle = 0
        """0 until it has joined."""
        self.credit = 0
        """How many messages the broker may still give without a further report."""
        self.waiting: deque[tuple[int, memoryview]] = deque()
        """(queue offset, record) given and not yet sent."""
        self.unacked: dict[int, None] = {}
        self.exact: dict[int, None] = {}
        """Unacknowledged offsets sent with QoS 2 to a session that ends with its connection."""
        self.report = SharedSettled(0, 0)
        """The offsets of the next report; `settled` adds handle and credit."""
        self.leaving = False

    # -- joining -------------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """The broker has lost this member, and has given its unsent messages to others."""
        self.waiting.clear()
        self.report = SharedSettled(0, 0, done=self.report.done, sent=list(self.exact))
        self.credit = self.handle = 0

    def leave(self) -> None:
        """Unsubscribed: unsent messages go to others, those in flight stay until they are acknowledged."""
        self.leaving = True
        self.give_back()
        self._hub.mark(self)

    # -- messages ------------------------------------------------------------------------------------------------------

    def given(self, offset: int, record: memoryview) -> None:
        """The broker gave a message."""
        self.credit -= 1
        if self.leaving:
            self.report.back.append(offset)
            self._hub.mark(self)
            return
        self.waiting.append((offset, record))
        if self.session.writable:
            self.session.wake()
        else:
            self._hub.watch(self)

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`."""
        self.exact.pop(offset, None)
        if self.unacked.pop(offset, 0) is None:
            self.report.done.append(offset)
            self._hub.mark(self)

    def send(self, outbound: MessageSender, offset: int, record: RecordView, qos: int) -> int:
        """Send the first of `waiting`; 0 when no member may receive it any more, and it is done."""
        first, _ = self.waiting.popleft()
        assert first == offset, (first, offset)
        grant, report = self.grant, self.report
        topic, begun = record.mqtt_topic or bytes(record.topic), False
        if topic and grant.judged and not outbound.may_read(topic, READ_LIVE):
            report.refused.append(offset)
            self._hub.mark(self)
            return 0
        if topic:  # otherwise it is not an MQTT message
            payload = record.body
            outbound.budget_bytes -= len(payload)
            retain = grant.retain_as_published and record.flags & FLAG_RETAIN != 0
            begun = outbound.send(record, topic, payload, qos, retain, (self, offset), grant.identifiers)
        if begun and qos:
            self.unacked[offset] = None
            if qos == QOS_2 and self.session.outgoing.steps is None:
                self.exact[offset] = None
                report.sent.append(offset)
        else:
            report.done.append(offset)
        self._hub.mark(self)
        return int(begun)

    def give_back(self) -> None:
        """Return the waiting messages, which cannot be sent now, to the group."""
        if self.waiting:
            self.report.back += [offset for offset, _ in self.waiting]
            self.waiting.clear()
            self._hub.mark(self)

    def room_again(self) -> None:
        """The session's window may have room."""
        missing = self.missing() if self.handle else 0
        if missing and missing * TOP_UP_SHARE >= self._window():
            self._hub.mark(self)

    def missing(self) -> int:
        """How many more messages the member can take beyond those it may be given already."""
        if self.leaving or not self.session.writable:
            return 0
        return max(0, self._window() - len(self.waiting) - self.credit)

    def _window(self) -> int:
        if not self.grant.qos:
            return WINDOW_MAX
        return min(WINDOW_MAX - len(self.unacked), self.session.room)

    def settled(self) -> SharedSettled | None:
        """The report to send now; it counts as sent."""
        report, credit = self.report, self.missing()
        if not (report.done or report.back or report.sent or report.refused or credit):
            return None
        report.handle, report.credit = self.handle, credit
        self.report = SharedSettled(0, 0)
        self.credit += credit
        return report

    @property
    def finished(self) -> bool:
        """Whether nothing is left to report."""
        report = self.report
        return self.leaving and not (self.unacked or report.done or report.back or report.refused)


STUCK_S = 1.0
"""How long a message waits for a full window or socket before another member gets it."""

LOG = get_logger("proxy.shared")


class SharedHub:
    """All members of this proxy and their requests to the broker."""

    def __init__(self, link: Link, metrics: ProxyMetrics) -> None:
        self._link = link
        self._metrics = metrics
        self._members: dict[int, SharedSource] = {}
        self._handles = 0
        self._joining: dict[SharedSource, None] = {}
        self._marked: dict[SharedSource, None] = {}
        self._watched: dict[SharedSource, int] = {}
        """Members that cannot send now -> the first offset that waits."""
        self._scheduled = False
        link.on_push(RequestCode.SHARED_GIVEN, self._given)
        link.on_down(self._down)

    def __len__(self) -> int:
        return len(self._members)

    def join(self, source: SharedSource) -> None:
        """Join a member; it gets a new handle."""
        self._members.pop(source.handle, None)
        source.lost()
        self._joining[source] = None
        self._schedule()

    def mark(self, source: SharedSource) -> None:
        """A member has something to report at the end of the turn."""
        self._marked[source] = None
        self._schedule()

    def watch(self, source: SharedSource) -> None:
        """A member has messages that it cannot send now; if that lasts, others get them."""
        if source not in self._watched and source.waiting:
            if not self._watched:
                asyncio.get_running_loop().call_later(STUCK_S, self._release_stuck)
            self._watched[source] = source.waiting[0][0]

    def _release_stuck(self) -> None:
        watched, self._watched = self._watched, {}
        for source, offset in watched.items():
            if source.waiting and source.waiting[0][0] == offset:
                source.give_back()
            else:
                self.watch(source)

    def forget(self, source: SharedSource) -> None:
        """The member's session has ended; the broker gives what it had to others."""
        self._watched.pop(source, None)
        self._members.pop(source.handle, None)
        self._joining.pop(source, None)
        self._marked.pop(source, None)

    def flush(self) -> None:
        """Send all reports now, before anything that follows on the link."""
        if not self._link.up:
            return
        joining, self._joining = self._joining, {}
        if joining:
            self._take(list(joining))
        marked, self._marked = self._marked, {}
        reports = []
        for source in marked:
            if source.handle:
                settled = source.settled()
                if settled is not None:
                    reports.append(settled)
                if source.finished:
                    self._members.pop(source.handle, None)
        if reports:
            self._link.oneway(RequestCode.SHARED_SETTLE, encode(SharedSettle(reports)))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self.flush()

    def _take(self, joining: list[SharedSource]) -> None:
        members = []
        for source in joining:
            self._handles += 1
            source.handle = self._handles
            self._members[source.handle] = source
            source.credit = source.missing()
            # Offsets acknowledged but not yet reported still belong to this member.
            report, session = source.report, source.session
            held = [*source.unacked, *report.done]
            members.append(
                SharedMember(source.handle, session.client_id, session.epoch, source.filter, source.credit, held)
            )
            if report.done or report.sent:
                self._marked[source] = None

        def taken(body: bytes, error: Exception | None) -> None:
            if error is not None:
                LOG.warning("shared_not_taken", members=len(members), error=str(error))
                self._metrics.subscriptions.refused.child("shared_not_joined").value += len(members)
                return
            for member, joined in zip(members, decode(SharedTaken, body).joined, strict=True):
                if not joined:
                    # The session has another owner by now, which ends its connection, or its filter was removed.
                    self._metrics.subscriptions.refused.child("shared_not_joined").value += 1
                    LOG.info("shared_not_joined", client_id=member.client_id, filter=member.filter)

        self._link.call(RequestCode.SHARED_TAKE, encode(SharedTake(members)), taken)

    def _given(self, command: Command) -> None:
        late: dict[int, list[int]] = {}
        for handle, offset, record in decode_given(command.body):
            source = self._members.get(handle)
            if source is not None:
                source.given(offset, record)
            else:  # the member left while this was in flight, perhaps before the broker knew
                late.setdefault(handle, []).append(offset)
        if late and self._link.up:
            self._metrics.subscriptions.shared_late.value += sum(map(len, late.values()))
            back = [SharedSettled(handle, 0, [], offsets) for handle, offsets in late.items()]
            self._link.oneway(RequestCode.SHARED_SETTLE, encode(SharedSettle(back)))

    def _down(self, _reason: str) -> None:
        for source in self._members.values():
            source.lost()
        self._members.clear()


class Memberships:
    """The memberships of one session: they take turns in sending."""

    __slots__ = ("_hub", "_session", "_turn", "sources")

    def __init__(self, hub: SharedHub, session: SubscriberSession) -> None:
        self._hub = hub
        self._session = session
        self._turn = 0
        self.sources: list[SharedSource] = []

    def add(self, topic_filter: str, queue_id: int, grant: Grant, epoch: int) -> SharedSource:
        """A subscription begins or is taken up again."""
        source = SharedSource(self._hub, self._session, topic_filter, queue_id, grant)
        self._session.epoch = epoch
        self.sources.append(source)
        self._session.sharers = len(self.sources)
        self._hub.join(source)
        return source

    def remove(self, source: SharedSource) -> None:
        """A subscription has ended; the broker is informed before it gets any further request."""
        self.sources.remove(source)
        self._session.sharers = max(1, len(self.sources))
        source.leave()
        self._hub.flush()

    def rejoin(self, epoch: int) -> None:
        """The connection to the broker is back."""
        self._session.epoch = epoch
        for source in self.sources:
            self._hub.join(source)

    def set_writable(self, writable: bool) -> None:
        """The socket accepts messages again, or no longer."""
        self._session.writable = writable
        if writable:
            self.room_again()
            return
        for source in self.sources:
            self._hub.watch(source)

    def room_again(self) -> None:
        """The session's window may have room."""
        for source in self.sources:
            source.room_again()

    def at(self, queue_id: int) -> SharedSource | None:
        """The membership whose messages lie in this queue; of several the oldest."""
        return next((source for source in self.sources if source.queue_id == queue_id), None)

    def release(self) -> None:
        """The session has ended; `SharedHub.flush` has sent all reports."""
        for source in self.sources:
            self._hub.forget(source)
        self.sources.clear()

    def send(self, outbound: MessageSender, portion: int) -> int:
        """Send up to `portion` messages within the turn's budget; returns how many were sent."""
        sent = 0
        for _ in range(len(self.sources)):
            self._turn = (self._turn + 1) % len(self.sources)
            source = self.sources[self._turn]
            while source.waiting and sent < portion and outbound.budget_bytes > 0:
                offset, raw = source.waiting[0]
                record = RecordView(raw)
                qos = min(record.flags & 3, source.grant.qos)
                if qos and self._session.outgoing.free <= 0:
                    self._hub.watch(source)
                    break
                sent += source.send(outbound, offset, record, qos)
        return sent
