"""Which topics a query may name, and which it may write to.

Invariant: what passes here a broker can have. Pure.
"""

from __future__ import annotations

from remoting.protocol.records import names, topics
from spark_connector.errors import OptionError


def check_mqtt_topic(topic: str | bytes) -> str:
    """What keeps rows from being written to an MQTT topic; empty when nothing does."""
    if topic[:1] in ("$", b"$"):
        return "topics that begin with $ are the server's own, rows cannot be written to them"
    return topics.validate_topic_name(topic) or ""


def check_topic(topic: str, other_option: str, option: str = "topic") -> None:
    """Raise OptionError unless RocketMQ can have a topic of this name."""
    if topic.startswith("%LMQ%") or not names.valid_rocketmq_topic(topic):
        hint = f"; MQTT topics and filters go into the option {other_option!r}" if "/" in topic else ""
        raise OptionError(f"option {option!r}: {topic!r} is not a RocketMQ topic{hint}")
