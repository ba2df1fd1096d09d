"""Sessions in the state that a test starts from."""

from __future__ import annotations

from mqtt_proxy.mqtt import packets
from mqtt_proxy.mqtt.encode import encode
from mqtt_proxy.mqtt.limits import SessionLimits
from mqtt_proxy.mqtt.session import Session


def connected(**limits: int) -> Session:
    """A session whose CONNECT has been accepted and answered."""
    session = Session(SessionLimits(**limits), assigned_client_id=lambda: "made-1")
    session.feed(encode(packets.Connect("dev", True, 0)), 0)
    session.accept(False)
    session.take_bytes()
    return session
