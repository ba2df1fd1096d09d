"""Sparkplug topics: `spBv1.0/group/type/node[/device]` and `spBv1.0/STATE/host` (Sparkplug 3.0, section 4).

Invariant: a topic is parsed to names that are all there, or to a reason. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "spBv1.0"
STATE = "STATE"
OF_NODES = frozenset({"NBIRTH", "NDEATH", "NDATA", "NCMD"})
OF_DEVICES = frozenset({"DBIRTH", "DDEATH", "DDATA", "DCMD"})
WITH_ALIASES = frozenset({"NDATA", "DDATA", "NCMD", "DCMD"})
"""Messages whose metrics may be known by an alias and a type that the birth certificate told."""


@dataclass(frozen=True, slots=True)
class SparkplugTopic:
    """What a topic says of its message."""

    message_type: str
    group: str | None = None
    node: str | None = None
    device: str | None = None
    host: str | None = None

    births: tuple[str, ...] = ()
    """Topics of the certificates that tell this message's aliases: the node's, and behind it the device's."""


def parse_topic(topic: str | None) -> SparkplugTopic | str:
    """Return what a topic says, or why it is none of Sparkplug."""
    if topic is None:
        return "no MQTT topic, which Sparkplug needs"
    parts = topic.split("/")
    if parts[0] != NAMESPACE:
        return f"the topic does not begin with {NAMESPACE}"
    if len(parts) == 3 and parts[1] == STATE and parts[2]:
        return SparkplugTopic(STATE, host=parts[2])
    if len(parts) < 4 or not all(parts):
        return f"the topic is not {NAMESPACE}/group/type/node[/device]"
    kind = parts[2]
    if kind in OF_NODES and len(parts) == 4:
        return SparkplugTopic(kind, parts[1], parts[3], births=_births(parts))
    if kind in OF_DEVICES and len(parts) == 5:
        return SparkplugTopic(kind, parts[1], parts[3], parts[4], births=_births(parts))
    if kind in OF_NODES or kind in OF_DEVICES:
        return f"{kind} does not belong to a topic of {len(parts)} levels"
    return f"{kind[:24]!r} is no Sparkplug message type"


def _births(parts: list[str]) -> tuple[str, ...]:
    group, node = parts[1], parts[3]
    of_node = f"{NAMESPACE}/{group}/NBIRTH/{node}"
    return (of_node,) if len(parts) == 4 else (of_node, f"{NAMESPACE}/{group}/DBIRTH/{node}/{parts[4]}")
