"""A client's packets one by one: CONNECT and DISCONNECT, AUTH, PINGREQ, filters, PUBLISH and acknowledgements.

Another protocol level gets its CONNACK and is closed [MQTT-3.1.2-2]; an empty client id needs a clean session in 3.1.1
[MQTT-3.1.3-7] [MQTT-3.1.3-8] and gets one from us; DISCONNECT discards the will [MQTT-3.14.4-3] unless its reason code
asks for it. The method of AUTH is the one of CONNECT [MQTT-4.12.1-1]; a client whose CONNECT named none may not send
AUTH [MQTT-4.12.0-6]; "continue" only answers a challenge; "re-authenticate" only once accepted.

Every filter of a SUBSCRIBE must be valid, or the connection is closed and none of them takes effect. A bridge of 3.1.1
cannot request no local and retain as published, and needs both: without the first a message would loop between two
brokers for ever, without the second the other broker could not keep retained messages.

A message is passed on first and acknowledged when the owner confirms that it is durable; a QoS 2 id is passed on once
until its PUBREL [MQTT-4.3.3-2], and PUBREL is always answered. Acknowledgements of nothing in flight are counted and
otherwise ignored: after a resume they are legal. Those that belong to the other QoS are a protocol error.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode import RETAIN_HANDLING_SHIFT, UnsupportedLevel
from mqtt_proxy.mqtt.codec.encode import (
    PINGRESP_BYTES,
    PUBCOMP_WORD,
    PUBREL_WORD,
    acknowledgement5,
    acknowledgements,
    connack,
    connack5,
)
from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX, PACKET_SIZE_BYTES_MAX
from mqtt_proxy.mqtt.codec.packets import (
    LEVEL_3,
    LEVEL_5,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from mqtt_proxy.mqtt.codec.reason_codes import (
    DISCONNECT_REASONS_OF_CLIENTS,
    FAILURE_MIN,
    ConnectCode,
    PacketViolation,
    Reason,
    ReasonCode,
)
from mqtt_proxy.mqtt.session.answers import Answers
from mqtt_proxy.mqtt.session.events import (
    NEVER,
    AuthReceived,
    ConnectRequested,
    Disconnected,
    PublishRefused,
    SubscribeRequested,
    SubscriptionRequest,
    UnsubscribeRequested,
)
from mqtt_proxy.mqtt.session.in_flight import COMPLETING, CONFIRMED, PUBLISHED, RECEIVED, RELEASED
from mqtt_proxy.mqtt.session.session_state import SessionState, Status
from mqtt_proxy.mqtt.session.topic_names import (
    DELAYED_PREFIX,
    IncomingAliases,
    OutgoingAliases,
    check_properties,
    delay_refusal,
    unfold_delayed,
)
from remoting.protocol.records.topics import SHARE_PREFIX


def level_refusal(violation: UnsupportedLevel) -> bytes:
    """The CONNACK for a level this server does not support, in the layout that client is most likely to read."""
    if violation.is_later:
        return connack5(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    return connack(False, ConnectCode.UNACCEPTABLE_PROTOCOL_LEVEL)


def connect(session: SessionState, packet: Packet) -> None:
    """Ask the owner about a CONNECT; everything after it waits."""
    packet = cast("Connect", packet)
    found = packet.properties or {}
    session.terms.bridge = packet.bridge
    session.terms.problem_information = found.get(props.REQUEST_PROBLEM_INFORMATION, 1) == 1
    session.terms.packet_size_out_max = found.get(props.MAXIMUM_PACKET_SIZE, PACKET_SIZE_BYTES_MAX)
    client_id = _client_id(session, packet)
    if packet.will is not None:
        session.names.check_name(packet.will.topic, "will topic")
        check_properties(session.limits, packet.will.properties)
        refusal = delay_refusal(session.limits, packet.will.properties)
        if refusal is not None:  # when the will is due there is no client to inform
            raise PacketViolation(Reason.DELAY, f"will: {refusal[1]}")
    session.terms.client_id = client_id
    session.terms.clean = packet.clean
    session.terms.keep_alive_s = packet.keep_alive_s
    session.terms.will = packet.will
    session.terms.session_expiry_s = (
        found.get(props.SESSION_EXPIRY, 0) if packet.level == LEVEL_5 else 0 if packet.clean else NEVER
    )
    method = found.get(props.AUTH_METHOD)
    session.terms.auth_method = None if method is None else method.decode()
    _take_quotas(session, packet)
    session.status = Status.DECIDING
    session.emit(
        ConnectRequested(
            client_id=client_id,
            clean=packet.clean,
            keep_alive_s=packet.keep_alive_s,
            username=packet.username,
            password=packet.password,
            will=packet.will,
            protocol_level=packet.level,
            server_made_id=session.terms.client_id_assigned,
            session_expiry_s=session.terms.session_expiry_s,
            receive_maximum=found.get(props.RECEIVE_MAXIMUM, PACKET_ID_MAX),
            packet_size_bytes_max=session.terms.packet_size_out_max,
            topic_alias_maximum=found.get(props.TOPIC_ALIAS_MAXIMUM, 0),
            request_response_information=found.get(props.REQUEST_RESPONSE_INFORMATION, 0) == 1,
            request_problem_information=session.terms.problem_information,
            user=found.get(props.USER, []),
            auth_method=session.terms.auth_method,
            auth_data=found.get(props.AUTH_DATA),
            bridge=packet.bridge,
        )
    )


def _take_quotas(session: SessionState, packet: Connect) -> None:
    """The number of messages in flight in each direction, and of aliases."""
    if packet.level == LEVEL_3:
        return
    found = packet.properties or {}
    session.outgoing.in_flight_max = min(session.limits.in_flight_max, found.get(props.RECEIVE_MAXIMUM, PACKET_ID_MAX))
    session.incoming.aliases = IncomingAliases(session.limits.topic_alias_maximum)
    alias_maximum = min(found.get(props.TOPIC_ALIAS_MAXIMUM, 0), session.limits.topic_alias_maximum)
    if alias_maximum:
        session.outgoing.aliases = OutgoingAliases(alias_maximum)


def _client_id(session: SessionState, packet: Connect) -> str:
    """The client's id, or one made for it."""
    if not packet.client_id:
        if not packet.clean and packet.level == LEVEL_3:
            _reject_client_id(session, "empty client id without a clean session [MQTT-3.1.3-8]")
        session.terms.client_id_assigned = True
        return session.assigned_client_id()
    if len(packet.client_id.encode()) > session.limits.client_id_bytes_max:
        _reject_client_id(session, f"client id longer than {session.limits.client_id_bytes_max} bytes [MQTT-3.1.3-9]")
    return packet.client_id


def _reject_client_id(session: SessionState, detail: str) -> None:
    if session.terms.level == LEVEL_3:
        session.out.append(connack(False, ConnectCode.IDENTIFIER_REJECTED))
    raise PacketViolation(Reason.CLIENT_ID, detail)


def ping(session: SessionState, _: Packet) -> None:
    """Answer PINGREQ [MQTT-3.12.4-1]."""
    session.out.append(PINGRESP_BYTES)


def disconnect(session: SessionState, packet: Packet) -> None:
    """The client disconnects normally: its will is discarded without being published [MQTT-3.14.4-3], unless the reason
    code is a failure or requests the will.
    """
    packet = cast("Disconnect", packet)
    expiry_s = (packet.properties or {}).get(props.SESSION_EXPIRY)
    if packet.reason not in DISCONNECT_REASONS_OF_CLIENTS:
        raise PacketViolation(Reason.PROTOCOL, f"DISCONNECT of a client with reason code {packet.reason:#x}")
    if expiry_s and not session.terms.session_expiry_s:
        raise PacketViolation(Reason.PROTOCOL, "DISCONNECT extends a session that was to end [3.14.2.2.2]")
    if packet.reason == ReasonCode.SUCCESS:
        session.terms.will = None
    session.emit(Disconnected(packet.reason, expiry_s, session.will_due))
    session.close(Reason.DISCONNECT)


def authenticate(session: SessionState, packet: Packet) -> None:
    """Pass a step to the owner; before acceptance everything after it waits."""
    packet = cast("Auth", packet)
    found = packet.properties or {}
    method = found.get(props.AUTH_METHOD)
    if session.terms.auth_method is None:
        raise PacketViolation(Reason.PROTOCOL, "AUTH, but CONNECT named no method [MQTT-4.12.0-6]")
    if method is None or method.decode() != session.terms.auth_method:
        raise PacketViolation(Reason.PROTOCOL, "AUTH with another method than CONNECT [MQTT-4.12.0-5]")
    begins = packet.reason == ReasonCode.RE_AUTHENTICATE and session.status is Status.CONNECTED
    continues = packet.reason == ReasonCode.CONTINUE_AUTHENTICATION and session.challenged
    if not (begins or continues):
        raise PacketViolation(Reason.PROTOCOL, f"AUTH with reason code {packet.reason:#x} that answers nothing")
    session.challenged = False
    if session.status is Status.AUTHENTICATING:
        session.status = Status.DECIDING
    session.emit(
        AuthReceived(packet.reason, session.terms.auth_method, found.get(props.AUTH_DATA), found.get(props.USER, []))
    )


_NO_LOCAL, _RETAIN_AS_PUBLISHED = 0x04, 0x08


def subscribe(session: SessionState, packet: Packet) -> None:
    """Ask the owner for subscriptions."""
    packet = cast("Subscribe", packet)
    _check_filters(session, [topic_filter for topic_filter, _ in packet.filters])
    for topic_filter, options in packet.filters:
        if options & _NO_LOCAL and topic_filter.startswith(SHARE_PREFIX):
            raise PacketViolation(Reason.PROTOCOL, "no local on a shared subscription")  # [MQTT-3.8.3-4]
    is_bridge = session.terms.bridge and session.terms.level == LEVEL_3  # MQTT 5 has options for this
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
    """Ask the owner to remove subscriptions."""
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


_PUBREL_FIRST, _PUBCOMP_FIRST = 0x62, 0x70


def publish(session: SessionState, packet: Packet) -> None:
    """A PUBLISH that the hot loop left: a new topic, QoS 2, a long body, properties, or an error."""
    packet = cast("Publish", packet)
    if session.terms.level == LEVEL_5:
        _resolve(session, packet)
    session.names.check_name(packet.topic)
    if packet.topic.startswith(DELAYED_PREFIX):
        unfold_delayed(packet)
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
    refusal = delay_refusal(session.limits, packet.properties)
    if refusal is None:
        session.gathered.publishing().append(packet)
    else:
        _refuse(session, packet, *refusal)


def _refuse(session: SessionState, packet: Publish, code: ReasonCode, words: str) -> None:
    """Refuse in the acknowledgement; where it has no code for that, the connection ends."""
    if not packet.qos or session.terms.level != LEVEL_5:
        raise PacketViolation(Reason.DELAY, words)
    session.emit(PublishRefused(packet, Reason.DELAY, words))
    Answers(session).refuse_publishes((packet.packet_id,), code, words)


def _resolve(session: SessionState, packet: Publish) -> None:
    """Replace an alias by the name; what a client may not send is a violation."""
    if packet.subscription_ids:
        raise PacketViolation(Reason.PROTOCOL, "PUBLISH of a client with a Subscription Identifier [MQTT-3.3.4-6]")
    if packet.topic:
        session.names.check_name(packet.topic)  # before an alias stands for it
    assert session.incoming.aliases is not None
    packet.topic = session.incoming.aliases.resolve(packet.topic_alias, packet.topic)
    packet.topic_alias = 0
    check_properties(session.limits, packet.properties)


def release(session: SessionState, packet: Packet) -> None:
    """PUBREL: pass it to the owner, who completes it; an unknown id is answered at once [MQTT-4.3.3-2]."""
    packet_id = cast("Pubrel", packet).packet_id
    phase = session.incoming.release(packet_id)
    if phase == CONFIRMED:
        session.gathered.releasing().append(packet_id)
    elif phase == COMPLETING:
        return  # its PUBCOMP is under way
    elif phase is None and session.terms.level == LEVEL_5:
        code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        session.out.append(acknowledgement5(_PUBCOMP_FIRST, packet_id, code))
    else:
        session.out.append(acknowledgements([PUBCOMP_WORD | packet_id]))


def acknowledged(session: SessionState, packet: Packet) -> None:
    """A PUBACK that the hot loop left: of a delivery that is not in flight, or with a reason code."""
    packet_id = cast("Puback", packet).packet_id
    if packet_id in session.outgoing.phases:
        raise PacketViolation(Reason.PROTOCOL, f"PUBACK for packet id {packet_id} of a QoS 2 delivery [4.3.3]")
    session.outgoing.finish(packet_id, session.gathered.acknowledging())


def received(session: SessionState, packet: Packet) -> None:
    """PUBREC: the client has received the message, or refuses it."""
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
    elif phase == RELEASED:
        session.out.append(acknowledgements([PUBREL_WORD | packet_id]))
    else:
        session.outgoing.stray += 1
        if phase is None and packet.reason < FAILURE_MIN:
            session.out.append(_pubrel_of_unknown(session.terms.level, packet_id))


def _pubrel_of_unknown(level: int, packet_id: int) -> bytes:
    """The client waits for a PUBREL of an unknown id: let it free the id [MQTT-4.3.3-1]."""
    if level == LEVEL_5:
        return acknowledgement5(_PUBREL_FIRST, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
    return acknowledgements([PUBREL_WORD | packet_id])


def completed(session: SessionState, packet: Packet) -> None:
    """PUBCOMP: the exchange is finished, the id is free."""
    packet_id = cast("Pubcomp", packet).packet_id
    if session.outgoing.phases.get(packet_id) == RELEASED:
        session.outgoing.finish(packet_id, session.gathered.acknowledging())
    elif packet_id in session.outgoing.window:  # ignored, it would stay there for ever: the client sends no more
        raise PacketViolation(
            Reason.PROTOCOL, f"PUBCOMP for packet id {packet_id}, for which no PUBREL was sent [4.3.2] [4.3.3]"
        )
    else:
        session.outgoing.stray += 1
