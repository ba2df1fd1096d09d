"""One session's membership in one group: what the broker gives it, what its client has acknowledged.

A member may be given what its session's window has free. A message counts as done when the client has acknowledged it
(QoS 0: when it was handed to the socket), has expired, or is too large for the client; one that finds the window or
the socket full waits, and goes back to the broker for another member when that takes long.
What was sent with QoS 2 goes to nobody else: a kept session has noted it (`exact`), of others the broker is told.

Invariant: an offset a member was given is in exactly one of `waiting`, `unacked`, `done`, `back` and `refused` until it
was told. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from mqtt_proxy.mqtt.codec.packets import QOS_2
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin, Outgoing
from remoting.access.rules import READ_LIVE
from remoting.protocol.bodies.shared_body import SHARED_BIT, SharedSettled
from remoting.protocol.records.record import FLAG_RETAIN, RecordView

WINDOW_MAX = 64
"""Messages one member has or may be given at most; a smaller window of the client's is kept to."""
TOP_UP_SHARE = 4
"""A member with nothing else to say asks for more once this fraction (1/n) of its window is free."""


class MemberCalls(Protocol):
    """Who speaks to the broker for all members: the hub."""

    def join(self, source: SharedSource) -> None:
        """Let a member begin to take."""

    def mark(self, source: SharedSource) -> None:
        """A member has something to say at the end of the turn."""

    def watch(self, source: SharedSource) -> None:
        """A member has messages that it cannot send now."""


class MessageSender(Protocol):
    """Who sends a message to the client: the outgoing half of its session."""

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
        """Send a message; False when it is not for this client any more."""


class SharedSource(DeliveryOrigin):
    """One session's membership in one group."""

    noted = False  # the group gives them to another member; those of QoS 2 are noted before they are sent
    flow_bit = SHARED_BIT

    __slots__ = (
        "_hub",
        "_identifiers",
        "_outgoing",
        "_wake",
        "back",
        "client_id",
        "credit",
        "done",
        "epoch",
        "exact",
        "filter",
        "handle",
        "judged",
        "leaving",
        "options",
        "qos",
        "refused",
        "sent",
        "sharers",
        "subscription_id",
        "unacked",
        "waiting",
        "writable",
    )

    def __init__(self, hub: MemberCalls, outgoing: Outgoing, topic_filter: str, queue_id: int, qos: int) -> None:
        super().__init__(queue_id)
        self._hub = hub
        self._outgoing = outgoing
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
        self.exact: dict[int, None] = {}
        """Of those unacknowledged, what was sent with QoS 2 to a session that ends with its connection."""
        self.sent: list[int] = []
        """Of these what the broker was not told yet: nobody else may get them."""
        self.done: list[int] = []
        self.back: list[int] = []
        self.refused: list[int] = []
        """Of what was given, what this client may not see: the group asks its other members."""
        self.judged = False
        """Whether each message is judged by its own topic."""
        self.leaving = False
        self.writable = True
        self.sharers = 1
        """Memberships of the same session; they share its window."""
        self.choose(0, 0)

    # -- joining -------------------------------------------------------------------------------------------------------

    def join(self, client_id: str, epoch: int, wake: Callable[[], None]) -> None:
        """Begin to take, or go on under a new epoch."""
        self.client_id, self.epoch, self._wake = client_id, epoch, wake
        self._hub.join(self)

    def lost(self) -> None:
        """The broker does not know this member any more, and has given to others what was not sent."""
        self.waiting.clear()
        self.back.clear()
        self.refused.clear()
        self.sent = list(self.exact)
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
        if self.leaving:
            self.back.append(offset)
            self._hub.mark(self)
            return
        self.waiting.append((offset, record))
        if self.writable:
            self._wake()
        else:
            self._hub.watch(self)

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`."""
        self.exact.pop(offset, None)
        if self.unacked.pop(offset, 0) is None:
            self.done.append(offset)
            self._hub.mark(self)

    def send(self, outbound: MessageSender, offset: int, record: RecordView, qos: int) -> int:
        """Send the first of `waiting`; 0 when it is not for anybody any more, and so is done."""
        first, _ = self.waiting.popleft()
        assert first == offset, (first, offset)
        topic, begun = record.mqtt_topic or bytes(record.topic), False
        if topic and self.judged and not outbound.may_read(topic, READ_LIVE):
            self.refused.append(offset)
            self._hub.mark(self)
            return 0
        if topic:  # else it is a record of somebody else's, for nobody here
            payload = record.body
            outbound.budget_bytes -= len(payload)
            retain = self.retain_as_published and record.flags & FLAG_RETAIN != 0
            begun = outbound.send(record, topic, payload, qos, retain, (self, offset), self._identifiers)
        if begun and qos:
            self.unacked[offset] = None
            if qos == QOS_2 and self._outgoing.steps is None:
                self.exact[offset] = None
                self.sent.append(offset)
        else:
            self.done.append(offset)
        self._hub.mark(self)
        return int(begun)

    def judge(self, judged: bool) -> None:
        """Whether each message has to be judged by its own topic from now on."""
        self.judged = judged

    def choose(self, options: int, subscription_id: int) -> None:
        """What the client wants of this subscription; options as in `session_body.FilterRequest`, 0 = no identifier."""
        self.options, self.subscription_id = options, subscription_id
        self._identifiers = (subscription_id,) if subscription_id else ()

    @property
    def retain_as_published(self) -> bool:
        """Whether the client wants the flag that a message was published with."""
        return self.options & 2 != 0

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
        elif self.waiting:
            self._hub.watch(self)

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
        return min(WINDOW_MAX - len(self.unacked), -(-self._outgoing.free // self.sharers))

    def settled(self) -> SharedSettled | None:
        """What there is to say, which counts as said then."""
        credit = self.missing()
        if not (self.done or self.back or self.sent or self.refused or credit):
            return None
        done, back, sent, refused = self.done, self.back, self.sent, self.refused
        self.done, self.back, self.sent, self.refused = [], [], [], []
        self.credit += credit
        return SharedSettled(self.handle, credit, done, back, sent, refused)

    @property
    def finished(self) -> bool:
        """Whether nothing of it is left to say."""
        return self.leaving and not (self.unacked or self.done or self.back or self.refused)
