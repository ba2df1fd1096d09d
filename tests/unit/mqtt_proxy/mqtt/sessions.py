"""Sessions in the state that a test starts from."""

from __future__ import annotations

from typing import Any

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.wire import fixed_header
from mqtt_proxy.mqtt.session.session import Session


def connected(**limits: int) -> Session:
    """A session whose CONNECT has been accepted and answered."""
    session = Session(SessionLimits(**limits), assigned_client_id=lambda: "made-1")
    session.feed(encode(packets.Connect("dev", True, 0)), 0)
    session.answers.accept(False)
    session.take_bytes()
    return session


def deciding5(properties: dict[int, Any] | None = None, **limits: int) -> Session:
    """A session of MQTT 5 whose CONNECT has been read."""
    session = Session(SessionLimits(**limits), assigned_client_id=lambda: "made-1")
    will = packets.Will(b"w", b"gone", 1, False)
    session.feed(encode(packets.Connect("dev", True, 10, None, None, will, 5, properties)), 0)
    return session


def connected5(properties: dict[int, Any] | None = None, **limits: int) -> Session:
    """A session of MQTT 5 whose CONNECT has been accepted and answered."""
    session = deciding5(properties, **limits)
    session.answers.accept(False)
    session.take_bytes()
    return session


def send5(session: Session, *sent: packets.Packet) -> list[Any]:
    """The events of these packets, sent in one read."""
    return list(session.feed(b"".join(encode(packet, 5) for packet in sent), 0))


def answers5(session: Session) -> list[packets.Packet]:
    """The packets the session has put out."""
    data = session.take_bytes()
    found, position = [], 0
    while position < len(data):
        header = fixed_header(data, position, len(data))
        assert header is not None
        stop = header[0] + header[1]
        found.append(decode(data[position], data[header[0] : stop], 5))
        position = stop
    return found
