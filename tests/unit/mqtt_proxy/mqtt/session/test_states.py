"""The table of states and packets covers every state and names only real packets."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.session.session import _TABLE
from mqtt_proxy.mqtt.session.states import State


def test_the_table_is_complete() -> None:
    """Each state has a row; server-to-client packets are in none."""
    assert set(_TABLE) == set(State)
    allowed = {packet_type for row in _TABLE.values() for packet_type in row}
    assert allowed <= set(packets.PACKET_NAMES)
    assert not allowed & {packets.CONNACK, packets.SUBACK, packets.UNSUBACK, packets.PINGRESP}
    assert list(_TABLE[State.EXPECT_CONNECT]) == [packets.CONNECT]
    assert not _TABLE[State.DECIDING]
    assert not _TABLE[State.CLOSED]
