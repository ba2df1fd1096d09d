"""The pure twin, second part: what is done once per published and once per acknowledged message.

Invariant: a place hears of every acknowledged offset once. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mqtt_proxy.mqtt.codec.packets import Publish


def survey(publishes: Sequence[Publish], exact: bool) -> tuple[bool, int, list[int]]:
    """Whether all of them are plain, the bytes of their topics and payloads, the packet ids of those that have one.

    `exact`: with QoS 2 the broker notes packet ids, so that such a publish is not plain.
    """
    plain = all((one.qos < 2 or not exact) and one.properties is None for one in publishes)
    size = sum([len(one.topic) + len(one.payload) for one in publishes])
    return plain, size, [one.packet_id for one in publishes if one.packet_id]


def settle(tokens: Iterable[Any]) -> int:
    """Acknowledge (place, offset) pairs; how many there were."""
    count = 0
    for place, offset in tokens:
        place.acknowledge(offset)
        count += 1
    return count
