"""AUTH: the steps of an extended authentication of MQTT 5, before the CONNACK and again later.

Rules: the method is the one of CONNECT [MQTT-4.12.1-1]; a client whose CONNECT named none may not send AUTH
[MQTT-4.12.0-6]; "continue" only answers a challenge; "re-authenticate" only once accepted. What the data means is the
owner's.
"""

from __future__ import annotations

from typing import cast

from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.packets import Auth, Packet
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason, ReasonCode
from mqtt_proxy.mqtt.session.events import AuthReceived
from mqtt_proxy.mqtt.session.session_state import SessionState, Status


def answer(session: SessionState, packet: Packet) -> None:
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
