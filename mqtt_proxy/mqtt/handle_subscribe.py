"""SUBSCRIBE and UNSUBSCRIBE: filters checked, the QoS lowered to what is granted, the rest is the owner's.

Rule: every filter of a packet must be valid, or the connection is closed and none of them takes effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mqtt_proxy.mqtt.events import SubscribeRequested, UnsubscribeRequested
from mqtt_proxy.mqtt.packets import Packet, Subscribe, Unsubscribe
from mqtt_proxy.mqtt.reason_codes import QOS_GRANTED_MAX, PacketViolation, Reason

if TYPE_CHECKING:
    from mqtt_proxy.mqtt.session import Session


def subscribe(session: Session, packet: Packet) -> None:
    """Ask the owner for subscriptions; a request for QoS 2 becomes one for QoS 1 [MQTT-3.8.4-6]."""
    packet = cast("Subscribe", packet)
    _check_filters(session, [topic_filter for topic_filter, _ in packet.filters])
    granted = [(topic_filter, min(qos, QOS_GRANTED_MAX)) for topic_filter, qos in packet.filters]
    session.emit(SubscribeRequested(packet.packet_id, granted))


def unsubscribe(session: Session, packet: Packet) -> None:
    """Ask the owner to give up subscriptions."""
    packet = cast("Unsubscribe", packet)
    _check_filters(session, packet.filters)
    session.emit(UnsubscribeRequested(packet.packet_id, packet.filters))


def _check_filters(session: Session, filters: list[str]) -> None:
    if len(filters) > session.limits.filters_per_packet_max:
        detail = f"{len(filters)} filters in one packet, at most {session.limits.filters_per_packet_max}"
        raise PacketViolation(Reason.TOO_LARGE, detail)
    for topic_filter in filters:
        session.names.check_filter(topic_filter)
