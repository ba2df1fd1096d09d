"""CONNECT, PINGREQ and DISCONNECT: protocol level, client id, will, and the end of a session.

Rules: another protocol level gets its CONNACK and is closed [MQTT-3.1.2-2]; an empty client id needs a clean session
[MQTT-3.1.3-7] [MQTT-3.1.3-8]; DISCONNECT discards the will [MQTT-3.14.4-3].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from mqtt_proxy.mqtt.codec import UnsupportedLevel
from mqtt_proxy.mqtt.encode import CONNACK_LEVEL_5_UNSUPPORTED, PINGRESP_BYTES, connack
from mqtt_proxy.mqtt.events import ConnectRequested, Disconnected
from mqtt_proxy.mqtt.packets import Connect, Packet
from mqtt_proxy.mqtt.reason_codes import ConnectCode, PacketViolation, Reason
from mqtt_proxy.mqtt.states import State

if TYPE_CHECKING:
    from mqtt_proxy.mqtt.session import Session

PROTOCOL_LEVEL = 4
"""MQTT 3.1.1."""


def level_refusal(violation: UnsupportedLevel) -> bytes:
    """The CONNACK for a level this server does not speak, in the layout that client reads."""
    if violation.is_level_5:
        return CONNACK_LEVEL_5_UNSUPPORTED
    return connack(False, ConnectCode.UNACCEPTABLE_PROTOCOL_LEVEL)


def connect(session: Session, packet: Packet) -> None:
    """Ask the owner about a CONNECT; everything behind it waits."""
    packet = cast("Connect", packet)
    client_id = packet.client_id
    if not client_id:
        if not packet.clean:
            _reject_client_id(session, "empty client id without a clean session [MQTT-3.1.3-8]")
        client_id = session.assigned_client_id()
    elif len(client_id.encode()) > session.limits.client_id_bytes_max:
        _reject_client_id(session, f"client id longer than {session.limits.client_id_bytes_max} bytes [MQTT-3.1.3-9]")
    if packet.will is not None:
        session.names.check_name(packet.will.topic, "will topic")
    session.client_id = client_id
    session.clean = packet.clean
    session.keep_alive_s = packet.keep_alive_s
    session.will = packet.will
    session.state = State.DECIDING
    session.emit(
        ConnectRequested(
            client_id=client_id,
            clean=packet.clean,
            keep_alive_s=packet.keep_alive_s,
            username=packet.username,
            password=packet.password,
            will=packet.will,
            protocol_level=PROTOCOL_LEVEL,
            server_made_id=not packet.client_id,
        )
    )


def _reject_client_id(session: Session, detail: str) -> None:
    session.out.append(connack(False, ConnectCode.IDENTIFIER_REJECTED))
    raise PacketViolation(Reason.CLIENT_ID, detail)


def ping(session: Session, _: Packet) -> None:
    """Answer PINGREQ [MQTT-3.12.4-1]."""
    session.out.append(PINGRESP_BYTES)


def disconnect(session: Session, _: Packet) -> None:
    """The client leaves properly: its will is discarded without being published [MQTT-3.14.4-3]."""
    session.will = None
    session.emit(Disconnected(clean=True))
    session.close(Reason.DISCONNECT)
