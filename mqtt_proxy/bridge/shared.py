"""Members of shared subscriptions in this proxy: what the broker gives them, what their clients have acknowledged.

The broker decides who gets a message and pushes it; a member only says how many more it can take: what its session's
window has free. A message counts as done when the client has acknowledged it (QoS 0: when it was handed to the socket);
one that finds the window or the socket full goes back to the broker for another member. All members' words of one loop
turn leave as one SHARED_SETTLE.
After a loss of the broker a member joins again and names what its client still has to acknowledge.

Invariant: an offset a member was given is in exactly one of `waiting`, `unacked`, `done` and `back` until it was told.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtt_proxy.bridge.link import Link
from mqtt_proxy.bridge.source import Place
from mqtt_proxy.metrics import ProxyMetrics
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.shared_body import (
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    decode_given,
    encode,
)
from remoting.transport.turn import soon
from runtime.logs import get_logger

if TYPE_CHECKING:
    from mqtt_proxy.mqtt.session import Session

WINDOW_MAX = 64
"""Messages one member has or may be given at most; a smaller window of the client's is kept to."""
TOP_UP_SHARE = 4
"""A member with nothing else to say asks for more once this fraction (1/n) of its window is free."""

LOG = get_logger("proxy.shared")


class SharedSource(Place):
    """One session's membership in one group."""

    __slots__ = (
        "_hub",
        "_session",
        "_wake",
        "back",
        "client_id",
        "credit",
        "done",
        "epoch",
        "filter",
        "handle",
        "leaving",
        "qos",
        "sharers",
        "unacked",
        "waiting",
        "writable",
    )

    def __init__(self, hub: SharedHub, session: Session, topic_filter: str, queue_id: int, qos: int) -> None:
        super().__init__(queue_id)
        self._hub = hub
        self._session = session
        self._wake: Callable[[], None] = lambda: None
        self.filter = topic_filter
        self.qos = qos
        self.client_id = ""
        self.epoch = 0
        self.handle = 0
        """0 while it has not joined."""
        self.credit = 0
        """How many the broker may still give without being told again."""
        self.waiting: deque[tuple[int, memoryview]] = deque()
        """(queue offset, record) given and not yet sent."""
        self.unacked: dict[int, None] = {}
        self.done: list[int] = []
        self.back: list[int] = []
        self.leaving = False
        self.writable = True
        self.sharers = 1
        """Memberships of the same session; they share its window."""

    # -- joining -------------------------------------------------------------------------------------------------------

    def join(self, client_id: str, epoch: int, wake: Callable[[], None]) -> None:
        """Begin to take, or go on under a new epoch."""
        self.client_id, self.epoch, self._wake = client_id, epoch, wake
        self._hub.join(self)

    def lost(self) -> None:
        """The broker does not know this member any more, and has given to others what was not sent."""
        self.waiting.clear()
        self.back.clear()
        self.credit = self.handle = 0

    def leave(self) -> None:
        """Unsubscribed: what is not sent goes to others, what is under way stays until it is acknowledged."""
        self.leaving = True
        self.give_back()
        self._hub.mark(self)

    # -- messages ------------------------------------------------------------------------------------------------------

    def given(self, offset: int, record: memoryview) -> None:
        """The broker gave a message."""
        self.credit -= 1
        if self.leaving or not self.writable:
            self.back.append(offset)
            self._hub.mark(self)
            return
        self.waiting.append((offset, record))
        self._wake()

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`."""
        if self.unacked.pop(offset, 0) is None:
            self.done.append(offset)
            self._hub.mark(self)

    def sent(self, offset: int, qos: int) -> None:
        """The first of `waiting` was handed to the session with this QoS, or needs no sending."""
        first, _ = self.waiting.popleft()
        assert first == offset, (first, offset)
        if qos:
            self.unacked[offset] = None
        else:
            self.done.append(offset)
        self._hub.mark(self)

    def give_back(self) -> None:
        """What waits cannot be sent now: let others have it."""
        if self.waiting:
            self.back += [offset for offset, _ in self.waiting]
            self.waiting.clear()
            self._hub.mark(self)

    def set_writable(self, writable: bool) -> None:
        """The socket takes messages again, or no longer."""
        self.writable = writable
        if writable:
            self.room_again()
        else:
            self.give_back()

    def room_again(self) -> None:
        """The session's window may have room."""
        missing = self.missing() if self.handle else 0
        if missing and missing * TOP_UP_SHARE >= self._window():
            self._hub.mark(self)

    def missing(self) -> int:
        """How many more the member can be given beyond what it may be given already."""
        if self.leaving or not self.writable:
            return 0
        return max(0, self._window() - len(self.waiting) - self.credit)

    def _window(self) -> int:
        if not self.qos:
            return WINDOW_MAX
        return min(WINDOW_MAX, self._session.window_free // self.sharers) if self._session.window_free else 0

    def settled(self) -> SharedSettled | None:
        """What there is to say, which counts as said then."""
        credit = self.missing()
        if not (self.done or self.back or credit):
            return None
        done, back = self.done, self.back
        self.done, self.back = [], []
        self.credit += credit
        return SharedSettled(self.handle, credit, done, back)

    @property
    def finished(self) -> bool:
        """Whether nothing of it is left to say."""
        return self.leaving and not (self.unacked or self.done or self.back)


class SharedHub:
    """All members of this proxy and their conversation with the broker."""

    def __init__(self, link: Link, metrics: ProxyMetrics) -> None:
        self._link = link
        self._metrics = metrics
        self._members: dict[int, SharedSource] = {}
        self._handles = 0
        self._joining: dict[SharedSource, None] = {}
        self._marked: dict[SharedSource, None] = {}
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

    def forget(self, source: SharedSource) -> None:
        """The member's session has ended; the broker gives what it had to others."""
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
            if source.done:
                self._marked[source] = None

        def taken(body: bytes, error: Exception | None) -> None:
            if error is not None:
                LOG.warning("shared_not_taken", members=len(members), error=str(error))
                self._metrics.refused_subscriptions.child("shared_not_joined").value += len(members)
                return
            for member, joined in zip(members, decode(SharedTaken, body).joined, strict=True):
                if not joined:
                    # The session has another owner by now, which its connection is told, or its filter is gone.
                    self._metrics.refused_subscriptions.child("shared_not_joined").value += 1
                    LOG.info("shared_not_joined", client_id=member.client_id, filter=member.filter)

        self._link.call(RequestCode.SHARED_TAKE, encode(SharedTake(members)), taken)

    def _given(self, command: Command) -> None:
        unknown = 0
        for handle, offset, record in decode_given(command.body):
            source = self._members.get(handle)
            if source is None:
                unknown += 1  # its session has ended; the broker learns or knows that, and gives it to another
            else:
                source.given(offset, record)
        self._metrics.shared_late.value += unknown

    def _down(self, _reason: str) -> None:
        for source in self._members.values():
            source.lost()
        self._members.clear()
