"""Messages on their way in."""

from __future__ import annotations

from broker.store.store_message import mqtt_topic
from tests.sim.stores import message


def test_mqtt_topic_is_the_first_property() -> None:
    """Found by the lengths table; other messages have none."""
    assert mqtt_topic(message([1], b"x", topic=b"plant", mqtt_topic=b"plant/7/temp")) == b"plant/7/temp"
    assert mqtt_topic(message([1], b"x")) is None
    other = message([1], b"x", mqtt_topic=b"a/b")
    other.meta = other.meta.replace(b"originMqttTopic", b"originXqttTopic")
    assert mqtt_topic(other) is None
