"""Resuming a stored session: where its cursors continue, what is sent again, and what a closing session notes.

The broker answers SESSION_OPEN with, per subscription, the lowest queue offset not known to be acknowledged, and with
the note of the last SESSION_CLOSE: the deliveries in flight with their packet ids (in order of sending) and, under
packet id 0, the position of each cursor. Both together determine which messages the client has. After a crash the
note is older than the offsets; entries below an offset are then acknowledged and are dropped from it.
QoS 2 deliveries are not in the note: each was made durable before it was sent, with its phase. So their cursor need not
be known even after a crash: QoS 2 messages that were sent and are not among them have reached the client
(`Source.is_exact`).

Invariant: a message the client may not have is either redelivered or above its cursor; a delivery sent again is
acknowledged to its queue's present source, if there is one. Loop rule: on the loop's thread; pure but for `fetch` and
`Redelivery`.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mqtt_proxy.delivery.delivery import Delivery, Token
from mqtt_proxy.delivery.record_cache import parse_records
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.history import HistoryRun
from mqtt_proxy.link import Link
from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX
from mqtt_proxy.mqtt.codec.packets import QOS_2
from mqtt_proxy.mqtt.session.in_flight import RETAINED_QUEUE, DeliveryOrigin
from mqtt_proxy.shared import SharedSource
from remoting.protocol.bodies.pull_body import (
    STATUS_OK,
    decode_multi_pull_reply,
    encode_multi_pull,
    encode_records_at,
)
from remoting.protocol.bodies.session_body import (
    HISTORY_BIT,
    PHASE_PUBLISH,
    PHASE_PUBREL,
    SHARED_BIT,
    InflightEntry,
    SessionOpened,
    is_shared_place,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.record import FLAG_RETAIN, RecordView, iter_records
from remoting.protocol.records.topics import share_of
from runtime.logs import get_logger

PENDING_RETAINED_MAX = 16_384
"""Positions of retained messages not yet sent that a closing session notes (some 16 bytes each, in its record); further
ones are counted, logged, and sent when the client subscribes again."""


FETCHED_MAX = 256
"""Messages asked for in one request when a session is resumed."""


@dataclass(slots=True)
class Again:
    """A delivery to be repeated under its packet id."""

    packet_id: int
    queue_id: int
    offset: int
    topic: bytes = b""
    payload: bytes | memoryview = b""
    qos: int = 1
    """QoS the message was published with."""
    record: RecordView | None = None
    phase: int = PHASE_PUBLISH
    """PHASE_PUBREL: the client has the message."""
    sent_qos: int = 1

    @property
    def is_retained(self) -> bool:
        """Whether it was published with the retain flag."""
        return self.record is not None and self.record.flags & FLAG_RETAIN != 0


@dataclass(slots=True)
class ResumePlan:
    """What to do with a stored session."""

    cursors: dict[int, int] = field(default_factory=dict)
    """Queue id -> queue offset where its source continues with new messages."""
    again: list[Again] = field(default_factory=list)
    """Deliveries whose exchange is not finished, in order of sending."""
    retained: list[int] = field(default_factory=list)
    """Positions of retained messages that were still to be sent."""
    over: list[int] = field(default_factory=list)
    """Packet ids of QoS 2 deliveries that were acknowledged after they were noted."""


NOTHING = ResumePlan()
"""For a new session; never changed."""


def plan(opened: SessionOpened) -> ResumePlan:
    """Combine committed offsets and the note of the last close."""
    own = [subscription for subscription in opened.subscriptions if share_of(subscription.filter) is None]
    resumed = ResumePlan({subscription.queue_id: subscription.offset for subscription in own})
    for subscription in own:
        if subscription.before is not None and subscription.before >= 0:
            resumed.cursors[subscription.queue_id | HISTORY_BIT] = subscription.before
    committed = dict(resumed.cursors)
    for entry in opened.inflight:
        if entry.packet_id == 0 and entry.queue_id == RETAINED_QUEUE:
            resumed.retained.append(entry.offset)
        elif entry.packet_id == 0:
            if entry.queue_id in committed:
                resumed.cursors[entry.queue_id] = max(committed[entry.queue_id], entry.offset)
        elif entry.offset >= committed.get(entry.queue_id, 0) or entry.phase == PHASE_PUBREL:
            one = Again(entry.packet_id, entry.queue_id, entry.offset, phase=entry.phase, sent_qos=entry.qos)
            resumed.again.append(one)
        elif entry.qos == QOS_2:
            resumed.over.append(entry.packet_id)
    # Without the note's cursor it is unknown whether the messages between deliveries in flight were sent: continue at
    # the committed offset, and use a new id for what would otherwise be sent twice.
    noted = {entry.queue_id for entry in opened.inflight if entry.packet_id == 0}
    resumed.again = in_order_of_sending(
        [
            again
            for again in resumed.again
            if again.sent_qos == QOS_2 or again.queue_id in noted or again.queue_id not in committed
        ]
    )
    return resumed


def in_order_of_sending(again: Sequence[Again]) -> list[Again]:
    """Packet ids are assigned in rising order and wrap to 1: the order begins behind the widest gap."""
    ordered = sorted(again, key=lambda one: one.packet_id)
    gaps = [one.packet_id - before.packet_id for before, one in itertools.pairwise(ordered)]
    around = PACKET_ID_MAX - ordered[-1].packet_id + ordered[0].packet_id if ordered else 0
    if not gaps or max(gaps) <= around:
        return ordered
    start = gaps.index(max(gaps)) + 1
    return ordered[start:] + ordered[:start]


def note(cursors: Sequence[tuple[int, int]], inflight: Sequence[Again], retained: Sequence[int]) -> list[InflightEntry]:
    """The note of a closing session, for `plan`."""
    return [
        *[InflightEntry(again.packet_id, again.queue_id, again.offset) for again in inflight],
        *[InflightEntry(0, queue_id, cursor) for queue_id, cursor in cursors],
        *[InflightEntry(0, RETAINED_QUEUE, position) for position in retained[:PENDING_RETAINED_MAX]],
    ]


async def fetch(link: Link, again: Sequence[Again]) -> list[Again]:
    """Read the messages to be repeated; those that no longer exist are left out.

    Raises:
        Refused: one of them may not be shown yet, so that it is not known whether it exists.
        LinkDownError: the broker was lost.
    """
    unsent = [one for one in again if one.phase == PHASE_PUBLISH]
    found = {one.packet_id for one in again if one.phase == PHASE_PUBREL}
    await _fetch(link, [one for one in unsent if not one.queue_id & HISTORY_BIT], _read_queued, found)
    await _fetch(link, [one for one in unsent if one.queue_id & HISTORY_BIT], _read_placed, found)
    return [one for one in again if one.packet_id in found]


_Read = Callable[[Link, Sequence[Again]], Awaitable[tuple[list[Again], list[Again]]]]
"""Reads some of these messages; those it has read, and those of which its answer says nothing."""


async def _fetch(link: Link, wanted: Sequence[Again], read: _Read, found: set[int]) -> None:
    waiting = list(wanted)
    while waiting:
        step, rest = waiting[:FETCHED_MAX], waiting[FETCHED_MAX:]
        got, untold = await read(link, step)
        found.update([one.packet_id for one in got])
        if untold and not got:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{len(untold)} messages in flight cannot be read yet")
        waiting = untold + rest


async def _read_queued(link: Link, wanted: Sequence[Again]) -> tuple[list[Again], list[Again]]:
    body = encode_multi_pull([(one.queue_id & ~SHARED_BIT, one.offset, 1, 1) for one in wanted])
    results = decode_multi_pull_reply(await link.request(RequestCode.MULTI_PULL, body))
    got, untold = [], []
    for one, result in zip(wanted, results, strict=True):
        if result.count and result.first_offset == one.offset:
            one.topic, one.payload, flags, start = parse_records(result.blob)[0]
            one.qos, one.record = flags & 3, RecordView(result.blob, start)
            got.append(one)
        elif result.status == STATUS_OK and not result.count and one.offset >= result.min_offset:
            untold.append(one)  # the answer was full
    return got, untold


async def _read_placed(link: Link, wanted: Sequence[Again]) -> tuple[list[Again], list[Again]]:
    body = encode_records_at([one.offset for one in wanted])
    at = {record.position: record for record in iter_records(await link.request(RequestCode.RECORDS_AT, body))}
    got = []
    for one in wanted:
        record = at.get(one.offset)
        if record is not None:
            one.topic, one.payload, one.qos = record.mqtt_topic or record.topic, record.body, record.flags & 3
            one.record = record
            got.append(one)
    # An answer without any record says that there is none; any other may have been full behind its last.
    last = wanted.index(got[-1]) if got else len(wanted)
    return got, list(wanted[last + 1 :])


LOG = get_logger("proxy.delivery")


class Redelivery:
    """What one connection of a session passes to the next."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def place(self, one: Again) -> Token:
        """Where a delivery of the session's previous connection lies."""
        origin = self._origin(one)
        if origin is not None and one.phase == PHASE_PUBLISH:
            origin.sent_before(one.offset)
        return self._token(one)

    def send_again(self, again: Sequence[Again]) -> set[int]:
        """Repeat what the client may not have; returns the packet ids of all deliveries that continue."""
        going_on = set()
        for one in again:
            source = self._member_of(one) if is_shared_place(one.queue_id) else self._subscription_of(one)
            identifiers = source.grant.identifiers if source is not None else ()
            retain = one.queue_id == RETAINED_QUEUE or (
                source is not None and source.grant.retain_as_published and one.is_retained
            )
            if one.phase == PHASE_PUBREL or self._delivery.outbound.send_again(
                one.packet_id, one.record, one.topic, one.payload, one.sent_qos, retain, self._token(one), identifiers
            ):
                going_on.add(one.packet_id)
        return going_on

    def _token(self, one: Again) -> Token:
        return self._origin(one) or DeliveryOrigin(one.queue_id), one.offset

    def _member_of(self, one: Again) -> SharedSource | None:
        return None if self._delivery.memberships is None else self._delivery.memberships.at(one.queue_id & ~SHARED_BIT)

    def _subscription_of(self, one: Again) -> Source | None:
        return None if one.queue_id == RETAINED_QUEUE else self._delivery.reader_of(one.queue_id & ~HISTORY_BIT)

    def _origin(self, one: Again) -> Source | HistoryRun | None:
        source = self._subscription_of(one)
        return source.history if source is not None and one.queue_id & HISTORY_BIT else source

    def retained_to_note(self) -> list[int]:
        """Positions of retained messages the session is still to be given, as many as its note takes."""
        pending = [
            position
            for one in self._delivery.sources
            if one.retained is not None
            for position in one.retained.remaining()
        ]
        lost = len(pending) - PENDING_RETAINED_MAX
        if lost > 0:
            self._delivery.outbound.removed.count("retained_note_full", lost)
            LOG.warning("retained_not_noted", messages=lost, session=(self._delivery.committed_key or b"").decode())
        return pending[:PENDING_RETAINED_MAX]
