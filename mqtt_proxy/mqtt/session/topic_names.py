"""Which topic names, filters and message properties a session accepts: the standard's rules plus the limits, with a
cache of names seen before.

Invariant: a name in the cache has passed every check, so the hot loop asks one table, which gives
it the one object of each name: whoever looks it up afterwards compares no bytes. The cache is bounded: when full it
is emptied, never grown. One instance serves all sessions of a process; it belongs to the event loop.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import check_text
from remoting.protocol.records.mqtt_properties import MessageProperties
from remoting.protocol.records.topics import validate_filter, validate_topic_name

KNOWN_TOPICS_MAX = 65_536
"""Names kept; at about 100 bytes each the cache stays below 7 MB."""

KNOWN_TOPIC_BYTES_MAX = 256
"""Longer names are checked every time, so that a full cache is bounded in bytes too."""


class TopicNames:
    """Checks topic names and filters against the standard and the limits."""

    __slots__ = ("_limits", "known")

    def __init__(self, limits: SessionLimits) -> None:
        self._limits = limits
        self.known: dict[bytes, bytes] = {}

    def check_name(self, topic: bytes, what: str = "topic name") -> None:
        """Accept the topic name of a PUBLISH or a will, or raise PacketViolation."""
        if topic in self.known:
            return
        check_text(topic, what)
        self._check_limits(topic, Reason.TOPIC_NAME_REFUSED, what)
        problem = validate_topic_name(topic)
        if problem is not None:
            raise PacketViolation(Reason.TOPIC_NAME, f"{what}: {problem}")
        # Topics that begin with $ may stand for something else (`delayed_topics`): they are looked at every time.
        if len(topic) <= KNOWN_TOPIC_BYTES_MAX and not topic.startswith(b"$"):
            if len(self.known) >= KNOWN_TOPICS_MAX:
                self.known.clear()
            self.known[topic] = topic

    def check_filter(self, topic_filter: str) -> None:
        """Accept a topic filter, or raise PacketViolation."""
        self._check_limits(topic_filter.encode(), Reason.TOPIC_FILTER_REFUSED, "topic filter")
        problem = validate_filter(topic_filter)
        if problem is not None:
            raise PacketViolation(Reason.TOPIC_FILTER, f"topic filter: {problem}")

    def _check_limits(self, topic: bytes, reason: str, what: str) -> None:
        size_bytes_max = self._limits.topic_bytes_max
        if len(topic) > size_bytes_max:
            raise PacketViolation(reason, f"{what} of {len(topic)} bytes, at most {size_bytes_max}")
        levels, levels_max = topic.count(b"/") + 1, self._limits.topic_levels_max
        if levels > levels_max:
            raise PacketViolation(reason, f"{what} of {levels} levels, at most {levels_max}")


def check_properties(limits: SessionLimits, properties: MessageProperties | None) -> None:
    """Accept the properties of a message, or raise PacketViolation: a record must be able to hold them."""
    if properties is None:
        return
    if len(properties.user) > limits.user_properties_max:
        detail = f"{len(properties.user)} user properties, at most {limits.user_properties_max}"
        raise PacketViolation(Reason.USER_PROPERTIES, detail)
    named = (properties.content_type, properties.response_topic, properties.correlation_data)
    size_bytes = sum(len(value) for value in named if value) + sum(len(k) + len(v) + 5 for k, v in properties.user)
    if size_bytes > limits.properties_bytes_max:
        detail = f"properties of {size_bytes} bytes, at most {limits.properties_bytes_max}"
        raise PacketViolation(Reason.TOO_LARGE, detail)
