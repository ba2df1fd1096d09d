"""What access is asked for, as text: a filter over topics, a consumer group, or a sink.

    RocketMQ topic `orders`          `orders/#`          whoever reads its queues reads every topic below that name
    light queue `%LMQ%plant%2F7`     `plant/7`           the topic or filter it is of
    consumer group `billing`         `$group/billing`    its offsets and members
    sink `etl`                       `$sink/etl`         its staged rows and its ledger

Invariant: no name of a topic, group or sink is the resource of another kind; a name with a wildcard or a slash in it
widens nothing. Pure.
"""

from __future__ import annotations

import re

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records import names
from remoting.protocol.records.record import RecordView

GROUP = "$group/"
SINK = "$sink/"
_NO_LEVEL = re.compile(r"[+#/\x00]|^$")
_LIGHT = names.LMQ_PREFIX.decode()


def of_topic(topic: str) -> str:
    """Return the resource of a RocketMQ topic or a light queue, by its name."""
    if topic.startswith(_LIGHT):
        return names.light_queue_topic(topic.encode()).decode("utf-8", "replace")
    return f"{_first_level(topic)}/#"


def of_record(record: RecordView) -> str:
    """Return the resource of one message: its MQTT topic, else its RocketMQ topic."""
    if record.mqtt_topic is not None:
        return bytes(record.mqtt_topic).decode("utf-8", "replace")
    return of_topic(bytes(record.topic).decode("utf-8", "replace"))


def of_group(group: str) -> str:
    """Return the resource of a consumer group."""
    return GROUP + _one_level(group)


def of_sink(sink: str) -> str:
    """Return the resource of a sink."""
    return SINK + _one_level(sink)


def _first_level(topic: str) -> str:
    """The first level of the MQTT topics a topic holds; its own name where that is none."""
    try:
        level = names.unescape(topic.encode()).decode()
    except (RemoteViolation, UnicodeError):
        return topic
    return topic if _NO_LEVEL.search(level) else level


def _one_level(name: str) -> str:
    """Escape what would make a name more than one level or a wildcard."""
    return names.escape(name.encode("utf-8", "surrogatepass")).decode()
