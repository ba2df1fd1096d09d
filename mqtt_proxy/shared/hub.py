"""The proxy's conversation with the broker about all its members of shared subscriptions.

The broker decides who gets a message and pushes it; a `member` says how many more it can take. All
members' words of one loop turn leave as one SHARED_SETTLE. After a loss of the broker a member joins again under a new
handle and names what its client still has to acknowledge. What a member cannot send for long goes to another.

Invariant: a handle names one member of one connection to the broker. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio

from mqtt_proxy.link.link import Link
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.shared.member import SharedSource
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
