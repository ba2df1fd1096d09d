"""Taking up a stored session: where its cursors go on, and what must be sent again.

The broker answers SESSION_OPEN with, per subscription, the lowest queue offset not known to be acknowledged, and with
the note the last SESSION_CLOSE left: the deliveries in flight with their packet ids (in order of sending) and, under
packet id 0, how far each cursor had come. Both together say exactly which messages the client has. After a crash the
note is older than the offsets; whatever lies below an offset is then acknowledged and dropped from it.
QoS 2 deliveries are not in the note: each was noted before it was sent, and comes with its phase. So after a crash too
their cursor need not be known: what was sent with QoS 2 and is not among them is with the client (`Source.is_exact`).

Invariant: a message the client may not have is either redelivered or above its cursor. Pure but for `fetch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from mqtt_proxy.delivery.record_cache import parse_records
from mqtt_proxy.link import Link
from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX
from mqtt_proxy.mqtt.codec.packets import QOS_2
from mqtt_proxy.mqtt.session.place import RETAINED_QUEUE
from remoting.protocol.bodies.pull_body import decode_multi_pull_reply, encode_multi_pull, encode_records_at
from remoting.protocol.bodies.session_body import HISTORY_BIT, PHASE_PUBLISH, PHASE_PUBREL, InflightEntry, SessionOpened
from remoting.protocol.bodies.shared_body import SHARED_BIT
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.record import FLAG_RETAIN, RecordView, iter_records
from remoting.protocol.records.topics import share_of

PENDING_RETAINED_MAX = 16_384
"""Positions of retained messages not yet sent that a closing session notes (some 16 bytes each, in its record); further
ones are counted, logged, and sent when the client subscribes again."""


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
    """Queue id -> queue offset where its source goes on with new messages."""
    again: list[Again] = field(default_factory=list)
    """Deliveries whose exchange is not over, in order of sending."""
    retained: list[int] = field(default_factory=list)
    """Positions of retained messages that were still to be sent."""
    over: list[int] = field(default_factory=list)
    """Packet ids of QoS 2 deliveries that were acknowledged after they were noted."""


NOTHING = ResumePlan()
"""For a session that was just made; never changed."""


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
    # Without the note's cursor nothing says that the messages between deliveries in flight were sent: go on at the
    # committed offset, and send under a new id what would otherwise be sent twice.
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
    """Packet ids are given out in rising order and begin again at 1: the order begins behind the widest gap."""
    ordered = sorted(again, key=lambda one: one.packet_id)
    gaps = [one.packet_id - before.packet_id for before, one in itertools.pairwise(ordered)]
    around = PACKET_ID_MAX - ordered[-1].packet_id + ordered[0].packet_id if ordered else 0
    if not gaps or max(gaps) <= around:
        return ordered
    start = gaps.index(max(gaps)) + 1
    return ordered[start:] + ordered[:start]


def note(cursors: Sequence[tuple[int, int]], inflight: Sequence[Again], retained: Sequence[int]) -> list[InflightEntry]:
    """What a closing session leaves for `plan`."""
    return [
        *[InflightEntry(again.packet_id, again.queue_id, again.offset) for again in inflight],
        *[InflightEntry(0, queue_id, cursor) for queue_id, cursor in cursors],
        *[InflightEntry(0, RETAINED_QUEUE, position) for position in retained[:PENDING_RETAINED_MAX]],
    ]


async def fetch(link: Link, again: Sequence[Again]) -> list[Again]:
    """Read the messages to be repeated; those that no longer exist are left out. Raises Refused or LinkDownError."""
    unsent = [one for one in again if one.phase == PHASE_PUBLISH]
    queued = [one for one in unsent if not one.queue_id & HISTORY_BIT]
    placed = [one for one in unsent if one.queue_id & HISTORY_BIT]
    found = {one.packet_id for one in again if one.phase == PHASE_PUBREL}
    if queued:
        body = encode_multi_pull([(one.queue_id & ~SHARED_BIT, one.offset, 1, 1) for one in queued])
        results = decode_multi_pull_reply(await link.request(RequestCode.MULTI_PULL, body))
        for one, result in zip(queued, results, strict=True):
            if result.count and result.first_offset == one.offset:
                one.topic, one.payload, flags, start = parse_records(result.blob)[0]
                one.qos, one.record = flags & 3, RecordView(result.blob, start)
                found.add(one.packet_id)
    if placed:
        body = encode_records_at([one.offset for one in placed])
        at = {record.position: record for record in iter_records(await link.request(RequestCode.RECORDS_AT, body))}
        for one in placed:
            record = at.get(one.offset)
            if record is not None:
                one.topic, one.payload, one.qos = record.mqtt_topic or record.topic, record.body, record.flags & 3
                one.record = record
                found.add(one.packet_id)
    return [one for one in again if one.packet_id in found]
