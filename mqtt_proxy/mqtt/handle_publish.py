"""PUBLISH in, its QoS 2 handshake, and the client's acknowledgements of deliveries.

Rules: a message is handed on first and acknowledged when the owner says it is durable; a QoS 2 id is handed on once
until its PUBREL [MQTT-4.3.3-2], and PUBREL is always answered. Acknowledgements of nothing in flight are counted, not
punished: after a resume they are legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mqtt_proxy.mqtt.encode import pubcomp
from mqtt_proxy.mqtt.packets import Packet, Puback, Publish, Pubrel

if TYPE_CHECKING:
    from mqtt_proxy.mqtt.session import Session

_MISSING = object()


def publish(session: Session, packet: Packet) -> None:
    """A PUBLISH the hot loop left alone: a new topic, QoS 2, a long body, or a broken rule."""
    packet = cast("Publish", packet)
    session.names.check_name(packet.topic)
    if packet.qos == 2:
        is_new, repeated = session.incoming.receive_exactly_once(packet.packet_id)
        if repeated:
            session.out.append(repeated)
        if not is_new:
            return
    elif packet.qos:
        session.incoming.pending.append(packet.packet_id)
    session.publishes.append(packet)


def release(session: Session, packet: Packet) -> None:
    """PUBREL: free the id and answer PUBCOMP, also for an id not known any more [MQTT-4.3.3-2]."""
    packet_id = cast("Pubrel", packet).packet_id
    session.incoming.release(packet_id)
    session.out.append(pubcomp(packet_id))


def acknowledged(session: Session, packet: Packet) -> None:
    """A PUBACK the hot loop left alone: mostly of a delivery that is not in flight."""
    token = session.outgoing.window.pop(cast("Puback", packet).packet_id, _MISSING)
    if token is _MISSING:
        session.stray_acknowledgements += 1
    else:
        session.acknowledged.append(token)


def stray(session: Session, _: Packet) -> None:
    """PUBREC or PUBCOMP: this server sends nothing with QoS 2, so there is nothing it could belong to."""
    session.stray_acknowledgements += 1
