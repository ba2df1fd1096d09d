"""CONNECT, AUTH, PINGREQ and DISCONNECT: level, client id, will, what the client can take, and
the end of a session.

Rules: another protocol level gets its CONNACK and is closed [MQTT-3.1.2-2]; an empty client id needs a clean session in
3.1.1 [MQTT-3.1.3-7] [MQTT-3.1.3-8] and gets one from us; DISCONNECT discards the will [MQTT-3.14.4-3] unless its reason
code asks for it. The method of AUTH is the one of CONNECT [MQTT-4.12.1-1]; a client whose CONNECT named none may not
send AUTH [MQTT-4.12.0-6]; "continue" only answers a challenge; "re-authenticate" only once accepted.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.mqtt.codec import encode5
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode import UnsupportedLevel
from mqtt_proxy.mqtt.codec.encode import PINGRESP_BYTES, connack
from mqtt_proxy.mqtt.codec.limits import PACKET_ID_MAX, PACKET_SIZE_BYTES_MAX
from mqtt_proxy.mqtt.codec.packets import LEVEL_3, LEVEL_5, Auth, Connect, Disconnect, Packet
from mqtt_proxy.mqtt.codec.reason_codes import (
    DISCONNECT_REASONS_OF_CLIENTS,
    ConnectCode,
    PacketViolation,
    Reason,
    ReasonCode,
)
from mqtt_proxy.mqtt.session import delayed_topics
from mqtt_proxy.mqtt.session.aliases import IncomingAliases, OutgoingAliases
from mqtt_proxy.mqtt.session.events import NEVER, AuthReceived, ConnectRequested, Disconnected
from mqtt_proxy.mqtt.session.session_state import SessionState, Status
from mqtt_proxy.mqtt.session.topic_names import check_properties


def level_refusal(violation: UnsupportedLevel) -> bytes:
    """The CONNACK for a level this server does not speak, in the layout that client is most likely to read."""
    if violation.is_later:
        return encode5.connack(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    return connack(False, ConnectCode.UNACCEPTABLE_PROTOCOL_LEVEL)


def connect(session: SessionState, packet: Packet) -> None:
    """Ask the owner about a CONNECT; everything behind it waits."""
    packet = cast("Connect", packet)
    found = packet.properties or {}
    session.terms.bridge = packet.bridge
    session.terms.problem_information = found.get(props.REQUEST_PROBLEM_INFORMATION, 1) == 1
    session.terms.packet_size_out_max = found.get(props.MAXIMUM_PACKET_SIZE, PACKET_SIZE_BYTES_MAX)
    client_id = _client_id(session, packet)
    if packet.will is not None:
        session.names.check_name(packet.will.topic, "will topic")
        check_properties(session.limits, packet.will.properties)
        refusal = delayed_topics.refusal(session.limits, packet.will.properties)
        if refusal is not None:  # when the will is due nobody is there to be told
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
    """How much may be under way in each direction, and how many aliases may be used."""
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
    """The client leaves properly: its will is discarded without being published [MQTT-3.14.4-3], unless it says that
    something is wrong, or asks for its will.
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
    """Hand a step on to the owner; before acceptance everything behind it waits."""
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
