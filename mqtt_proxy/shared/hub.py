"""The proxy's conversation with the broker about its members of shared subscriptions, and the members of one session.

The broker decides who gets a message and pushes it; a `member` says how many more it can take. What all members have to
say in one loop turn leaves as one SHARED_SETTLE. After a loss of the broker a member joins again under a new handle and
names what its client still has to acknowledge. What a member cannot send for long goes to another. The members of one
session take turns in sending and share its window.

Invariant: a handle names one member of one connection to the broker; each member knows how many share its window. Loop
rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mqtt_proxy.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.session.in_flight import Outgoing
from mqtt_proxy.shared.member import MessageSender, SharedSource
from remoting.protocol.bodies.shared_body import (
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
from remoting.protocol.records.record import RecordView
from remoting.transport.turn import soon
from runtime.logs import get_logger

STUCK_S = 1.0
"""How long a message waits for a window or a socket that stays full before another member gets it."""

LOG = get_logger("proxy.shared")


class SharedHub:
    """All members of this proxy and their conversation with the broker."""

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
        """Let a member begin to take; it gets a new handle."""
        self._members.pop(source.handle, None)
        source.lost()
        self._joining[source] = None
        self._schedule()

    def mark(self, source: SharedSource) -> None:
        """A member has something to say at the end of the turn."""
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
        """Say everything now: what follows on the link must find it said."""
        if not self._link.up:
            return
        joining, self._joining = self._joining, {}
        if joining:
            self._take(list(joining))
        marked, self._marked = self._marked, {}
        said = []
        for source in marked:
            if source.handle:
                settled = source.settled()
                if settled is not None:
                    said.append(settled)
                if source.finished:
                    self._members.pop(source.handle, None)
        if said:
            self._link.oneway(RequestCode.SHARED_SETTLE, encode(SharedSettle(said)))

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
            # What was acknowledged but not yet said is its own too, until it is said.
            held = [*source.unacked, *source.done]
            members.append(
                SharedMember(source.handle, source.client_id, source.epoch, source.filter, source.credit, held)
            )
            if source.done or source.sent:
                self._marked[source] = None

        def taken(body: bytes, error: Exception | None) -> None:
            if error is not None:
                LOG.warning("shared_not_taken", members=len(members), error=str(error))
                self._metrics.subscriptions.refused.child("shared_not_joined").value += len(members)
                return
            for member, joined in zip(members, decode(SharedTaken, body).joined, strict=True):
                if not joined:
                    # The session has another owner by now, which its connection is told, or its filter is gone.
                    self._metrics.subscriptions.refused.child("shared_not_joined").value += 1
                    LOG.info("shared_not_joined", client_id=member.client_id, filter=member.filter)

        self._link.call(RequestCode.SHARED_TAKE, encode(SharedTake(members)), taken)

    def _given(self, command: Command) -> None:
        late: dict[int, list[int]] = {}
        for handle, offset, record in decode_given(command.body):
            source = self._members.get(handle)
            if source is not None:
                source.given(offset, record)
            else:  # it left while this was on its way; the broker may not have known that yet
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

    __slots__ = ("_hub", "_outgoing", "_turn", "_wake", "sources")

    def __init__(self, hub: SharedHub, outgoing: Outgoing, wake: Callable[[], None]) -> None:
        self._hub = hub
        self._outgoing = outgoing
        self._wake = wake
        self._turn = 0
        self.sources: list[SharedSource] = []

    def add(
        self, topic_filter: str, queue_id: int, qos: int, client_id: str, epoch: int, *, judged: bool = False
    ) -> SharedSource:
        """A subscription begins or is taken up again."""
        source = SharedSource(self._hub, self._outgoing, topic_filter, queue_id, qos)
        source.judge(judged)
        self.sources.append(source)
        self._share()
        source.join(client_id, epoch, self._wake)
        return source

    def remove(self, source: SharedSource) -> None:
        """A subscription has ended; the broker is told before anything else is asked of it."""
        self.sources.remove(source)
        self._share()
        source.leave()
        self._hub.flush()

    def rejoin(self, epoch: int) -> None:
        """The broker was lost and is back."""
        for source in self.sources:
            source.join(source.client_id, epoch, self._wake)

    def set_writable(self, writable: bool) -> None:
        """The socket takes messages again, or no longer."""
        for source in self.sources:
            source.set_writable(writable)

    def room_again(self) -> None:
        """The session's window may have room."""
        for source in self.sources:
            source.room_again()

    def at(self, queue_id: int) -> SharedSource | None:
        """The membership whose messages lie in this queue; of several the oldest."""
        return next((source for source in self.sources if source.queue_id == queue_id), None)

    def release(self) -> None:
        """The session has ended; everything there is to say was said by `SharedHub.flush`."""
        for source in self.sources:
            self._hub.forget(source)
        self.sources.clear()

    def send(self, outbound: MessageSender, portion: int) -> int:
        """Send up to `portion` messages as far as the turn's budget goes; how many were."""
        sent = 0
        for _ in range(len(self.sources)):
            self._turn = (self._turn + 1) % len(self.sources)
            source = self.sources[self._turn]
            while source.waiting and sent < portion and outbound.budget_bytes > 0:
                offset, raw = source.waiting[0]
                record = RecordView(raw)
                qos = min(record.flags & 3, source.qos)
                if qos and self._outgoing.free <= 0:
                    self._hub.watch(source)
                    break
                sent += source.send(outbound, offset, record, qos)
        return sent

    def _share(self) -> None:
        for source in self.sources:
            source.sharers = len(self.sources)
