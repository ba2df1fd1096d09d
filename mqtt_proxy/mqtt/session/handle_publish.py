"""PUBLISH in, its QoS 2 handshake, and the client's acknowledgements of deliveries.

Rules: a message is handed on first and acknowledged when the owner says it is durable; a QoS 2 id is handed on once
until its PUBREL [MQTT-4.3.3-2], and PUBREL is always answered. Acknowledgements of nothing in flight are counted, not
punished: after a resume they are legal. Those that belong to the other QoS are a protocol error.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.mqtt.codec import encode5
from mqtt_proxy.mqtt.codec.encode import PUBCOMP_WORD, PUBREL_WORD, acknowledgements
from mqtt_proxy.mqtt.codec.packets import LEVEL_5, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from mqtt_proxy.mqtt.codec.reason_codes import FAILURE_MIN, PacketViolation, Reason, ReasonCode
from mqtt_proxy.mqtt.session import delayed_topics
from mqtt_proxy.mqtt.session.answers import Answers
from mqtt_proxy.mqtt.session.events import PublishRefused
from mqtt_proxy.mqtt.session.incoming import CONFIRMED, RELEASED
from mqtt_proxy.mqtt.session.outgoing import PUBLISHED, RECEIVED
from mqtt_proxy.mqtt.session.outgoing import RELEASED as SENT_PUBREL
from mqtt_proxy.mqtt.session.session_state import SessionState
from mqtt_proxy.mqtt.session.topic_names import check_properties

_PUBREL_FIRST, _PUBCOMP_FIRST = 0x62, 0x70


def publish(session: SessionState, packet: Packet) -> None:
    """A PUBLISH the hot loop left alone: a new topic, QoS 2, a long body, properties, or a broken rule."""
    packet = cast("Publish", packet)
    if session.terms.level == LEVEL_5:
        _resolve(session, packet)
    session.names.check_name(packet.topic)
    if packet.topic.startswith(delayed_topics.PREFIX):
        delayed_topics.unfold(packet)
        session.names.check_name(packet.topic)
    if packet.qos == 2:
        is_new, repeated = session.incoming.receive_exactly_once(packet.packet_id)
        if repeated:
            session.out.append(repeated)
        if not is_new:
            return
    elif packet.qos:
        session.incoming.pending.append(packet.packet_id)
    if packet.qos and session.terms.level == LEVEL_5 and session.incoming.in_use > session.limits.receive_maximum:
        detail = f"more than {session.limits.receive_maximum} publishes not acknowledged [MQTT-3.3.4-7]"
        raise PacketViolation(Reason.RECEIVE_MAXIMUM, detail)
    refusal = delayed_topics.refusal(session.limits, packet.properties)
    if refusal is None:
        session.gathered.publishing().append(packet)
    else:
        _refuse(session, packet, *refusal)


def _refuse(session: SessionState, packet: Publish, code: ReasonCode, words: str) -> None:
    """Say no in the acknowledgement; where there is none that can say it, the connection ends."""
    if not packet.qos or session.terms.level != LEVEL_5:
        raise PacketViolation(Reason.DELAY, words)
    session.emit(PublishRefused(packet, Reason.DELAY, words))
    Answers(session).refuse_publishes((packet.packet_id,), code, words)


def _resolve(session: SessionState, packet: Publish) -> None:
    """Put the name in the place of an alias; what a client may not say is a violation."""
    if packet.subscription_ids:
        raise PacketViolation(Reason.PROTOCOL, "PUBLISH of a client with a Subscription Identifier [MQTT-3.3.4-6]")
    if packet.topic:
        session.names.check_name(packet.topic)  # before an alias stands for it
    assert session.incoming.aliases is not None
    packet.topic = session.incoming.aliases.resolve(packet.topic_alias, packet.topic)
    packet.topic_alias = 0
    check_properties(session.limits, packet.properties)


def release(session: SessionState, packet: Packet) -> None:
    """PUBREL: tell the owner, who completes it; an id not known any more is answered at once [MQTT-4.3.3-2]."""
    packet_id = cast("Pubrel", packet).packet_id
    phase = session.incoming.release(packet_id)
    if phase == CONFIRMED:
        session.gathered.releasing().append(packet_id)
    elif phase == RELEASED:
        return  # its PUBCOMP is under way
    elif phase is None and session.terms.level == LEVEL_5:
        code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        session.out.append(encode5.acknowledgement(_PUBCOMP_FIRST, packet_id, code))
    else:
        session.out.append(acknowledgements([PUBCOMP_WORD | packet_id]))


def acknowledged(session: SessionState, packet: Packet) -> None:
    """A PUBACK the hot loop left alone: of a delivery that is not in flight, or with a reason code."""
    packet_id = cast("Puback", packet).packet_id
    if packet_id in session.outgoing.phases:
        raise PacketViolation(Reason.PROTOCOL, f"PUBACK for packet id {packet_id} of a QoS 2 delivery [4.3.3]")
    session.outgoing.finish(packet_id, session.gathered.acknowledging())


def received(session: SessionState, packet: Packet) -> None:
    """PUBREC: the client has the message, or will not have it."""
    packet = cast("Pubrec", packet)
    packet_id = packet.packet_id
    phase = session.outgoing.phases.get(packet_id)
    if phase is None and packet_id in session.outgoing.window:
        raise PacketViolation(Reason.PROTOCOL, f"PUBREC for packet id {packet_id} of a QoS 1 delivery [4.3.2]")
    if phase == PUBLISHED and packet.reason >= FAILURE_MIN:
        session.outgoing.finish(packet_id, session.gathered.acknowledging())
    elif phase == PUBLISHED:
        session.outgoing.enter(packet_id, RECEIVED)
        session.gathered.receiving().append(packet_id)
    elif phase == SENT_PUBREL:
        session.out.append(acknowledgements([PUBREL_WORD | packet_id]))
    else:
        session.outgoing.stray += 1
        if phase is None and packet.reason < FAILURE_MIN:
            session.out.append(_pubrel_of_unknown(session.terms.level, packet_id))


def _pubrel_of_unknown(level: int, packet_id: int) -> bytes:
    """The client waits for a PUBREL of something we know nothing of: let it free the id [MQTT-4.3.3-1]."""
    if level == LEVEL_5:
        return encode5.acknowledgement(_PUBREL_FIRST, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    return acknowledgements([PUBREL_WORD | packet_id])


def completed(session: SessionState, packet: Packet) -> None:
    """PUBCOMP: the exchange is over, the id is free."""
    packet_id = cast("Pubcomp", packet).packet_id
    if session.outgoing.phases.get(packet_id) == SENT_PUBREL:
        session.outgoing.finish(packet_id, session.gathered.acknowledging())
    elif packet_id in session.outgoing.window:  # ignored, it would stay there for ever: the client has said its word
        raise PacketViolation(
            Reason.PROTOCOL, f"PUBCOMP for packet id {packet_id}, for which no PUBREL was sent [4.3.2] [4.3.3]"
        )
    else:
        session.outgoing.stray += 1
