"""SUBSCRIBE and UNSUBSCRIBE: filters checked, options taken apart, the rest is the owner's.

A bridge of 3.1.1 cannot ask for no local and retain as published, and means both: without the first a message would go
round between two brokers for ever, without the second the other broker could not keep what is retained.
Rule: every filter of a packet must be valid, or the connection is closed and none of them takes effect.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode5 import RETAIN_HANDLING_SHIFT
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, Packet, Subscribe, Unsubscribe
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from mqtt_proxy.mqtt.session.events import SubscribeRequested, SubscriptionRequest, UnsubscribeRequested
from mqtt_proxy.mqtt.session.session_state import SessionState
from remoting.protocol.records.topics import SHARE_PREFIX

_NO_LOCAL, _RETAIN_AS_PUBLISHED = 0x04, 0x08


def subscribe(session: SessionState, packet: Packet) -> None:
    """Ask the owner for subscriptions."""
    packet = cast("Subscribe", packet)
    _check_filters(session, [topic_filter for topic_filter, _ in packet.filters])
    for topic_filter, options in packet.filters:
        if options & _NO_LOCAL and topic_filter.startswith(SHARE_PREFIX):
            raise PacketViolation(Reason.PROTOCOL, "no local on a shared subscription")  # [MQTT-3.8.3-4]
    is_bridge = session.terms.bridge and session.terms.level == LEVEL_3  # one of MQTT 5 has its own say
    requests = [
        SubscriptionRequest(
            topic_filter,
            options & 3,
            bool(options & _NO_LOCAL) or (is_bridge and not topic_filter.startswith(SHARE_PREFIX)),
            bool(options & _RETAIN_AS_PUBLISHED) or is_bridge,
            options >> RETAIN_HANDLING_SHIFT,
        )
        for topic_filter, options in packet.filters
    ]
    found = packet.properties or {}
    session.emit(
        SubscribeRequested(packet.packet_id, requests, found.get(props.SUBSCRIPTION_ID, 0), found.get(props.USER, []))
    )


def unsubscribe(session: SessionState, packet: Packet) -> None:
    """Ask the owner to give up subscriptions."""
    packet = cast("Unsubscribe", packet)
    _check_filters(session, packet.filters)
    user = (packet.properties or {}).get(props.USER, [])
    session.emit(UnsubscribeRequested(packet.packet_id, packet.filters, user))


def _check_filters(session: SessionState, filters: list[str]) -> None:
    if len(filters) > session.limits.filters_per_packet_max:
        detail = f"{len(filters)} filters in one packet, at most {session.limits.filters_per_packet_max}"
        raise PacketViolation(Reason.TOO_LARGE, detail)
    for topic_filter in filters:
        session.names.check_filter(topic_filter)
