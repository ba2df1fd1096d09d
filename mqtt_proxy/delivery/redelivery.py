"""What the previous connection of a session had under way, sent again over its deliveries of now; and what the next
connection will have to be told.

Invariant: a delivery sent again is acknowledged to the source that its queue has now, if it has one. Loop rule: on the
loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from mqtt_proxy.delivery.delivery import Delivery, Token
from mqtt_proxy.delivery.resume import PENDING_RETAINED_MAX, Again
from mqtt_proxy.delivery.source import Source
from mqtt_proxy.history import HistoryRun
from mqtt_proxy.mqtt.session.place import RETAINED_QUEUE, DeliveryOrigin
from mqtt_proxy.shared.member import SharedSource
from remoting.protocol.bodies.session_body import HISTORY_BIT, PHASE_PUBLISH, PHASE_PUBREL
from remoting.protocol.bodies.shared_body import SHARED_BIT, is_shared_place
from runtime.logs import get_logger

LOG = get_logger("proxy.delivery")


class Redelivery:
    """What goes from one connection of a session to the next."""

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
        """Repeat what the client may not have; the packet ids of all that goes on."""
        going_on = set()
        for one in again:
            source = self._member_of(one) if is_shared_place(one.queue_id) else self._subscription_of(one)
            identifiers = (source.subscription_id,) if source is not None and source.subscription_id else ()
            retain = one.queue_id == RETAINED_QUEUE or (
                source is not None and source.retain_as_published and one.is_retained
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
        """Positions of retained messages the session was still to be given, as many as its note takes."""
        pending = [
            position
            for one in self._delivery.sources
            if one.retained is not None
            for position in one.retained.remaining()
        ]
        lost = len(pending) - PENDING_RETAINED_MAX
        if lost > 0:
            self._delivery.removed.count("retained_note_full", lost)
            LOG.warning("retained_not_noted", messages=lost, session=(self._delivery.committed_key or b"").decode())
        return pending[:PENDING_RETAINED_MAX]
