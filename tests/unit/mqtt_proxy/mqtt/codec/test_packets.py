"""Packet types have the standard's numbers and names."""

from __future__ import annotations

from typing import get_args

from mqtt_proxy.mqtt.codec import packets


def test_numbers_and_names() -> None:
    """Table 2.1: 1 to 15, and each constant is named after its packet."""
    assert sorted(packets.PACKET_NAMES) == list(range(1, 16))
    assert all(getattr(packets, name) == number for number, name in packets.PACKET_NAMES.items())
    assert {kind.__name__.upper() for kind in get_args(packets.Packet)} == set(packets.PACKET_NAMES.values())
