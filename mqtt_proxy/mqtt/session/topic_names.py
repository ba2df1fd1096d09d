"""Which topic names, filters and message properties a session accepts; delayed topics and topic aliases.

A cache keeps names seen before: a name in it has passed every check, so the hot loop looks up one table, which returns
the one object of each name: later lookups compare no bytes. The cache is bounded: when full it is emptied, never grown.
One instance serves all sessions of a process; it belongs to the event loop.

Topic aliases of one connection, both ways, are numbers that replace a topic's name (MQTT 5). Invariant: an alias is
valid on this connection only, and only from the PUBLISH that carried both [3.3.2.3.4]. Both tables are bounded by the
maximum their receiver announced; when ours is full we assign no further alias.

A message that is to be delivered later requests it in one of two ways:

    MQTT 5          user property `delay-ms` = milliseconds
    any version     topic `$delayed/<seconds>/<topic>`

Both become the real topic and the property, which the broker uses. Checks, routing and caches use the real topic; the
prefix is removed here. Invariant: an accepted packet has at most one `delay-ms`, of digits, within the limit.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason, ReasonCode
from mqtt_proxy.mqtt.codec.wire import check_text
from remoting.protocol.records.properties import MessageProperties
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
        # Topics that begin with $ may stand for something else (a delayed topic): they are checked every time.
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
    """Accept the properties of a message, or raise PacketViolation: they must fit into a record."""
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


ALIASED_TOPIC_BYTES_MIN = 4
"""A shorter topic costs less than the property that would replace it."""


class IncomingAliases:
    """The topics of the client's aliases."""

    __slots__ = ("_maximum", "_names")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._names: dict[int, bytes] = {}

    def resolve(self, alias: int, topic: bytes) -> bytes:
        """The topic of a PUBLISH; `alias` 0 = none. Raises PacketViolation."""
        if alias > self._maximum:
            detail = f"Topic Alias {alias}, at most {self._maximum} [MQTT-3.3.2-9]"
            raise PacketViolation(Reason.TOPIC_ALIAS, detail)
        if topic:
            if alias:
                self._names[alias] = topic
            return topic
        known = self._names.get(alias)
        if known is None:
            raise PacketViolation(Reason.PROTOCOL, "PUBLISH without a topic name or a known Topic Alias [3.3.2.1]")
        return known


class OutgoingAliases:
    """The aliases we have assigned."""

    __slots__ = ("_maximum", "_numbers")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._numbers: dict[bytes, int] = {}

    def look_up(self, topic: bytes) -> tuple[int, bool]:
        """(alias, whether the client knows it already); alias 0 = none."""
        alias = self._numbers.get(topic)
        if alias is not None:
            return alias, True
        if len(self._numbers) >= self._maximum or len(topic) < ALIASED_TOPIC_BYTES_MIN:
            return 0, False
        return len(self._numbers) + 1, False

    def given(self, topic: bytes, alias: int) -> None:
        """The PUBLISH that defines this alias for the client is on its way."""
        self._numbers[topic] = alias


DELAYED_PREFIX = b"$delayed/"
DELAY_KEY = b"delay-ms"
DIGITS_MAX = 12


def unfold_delayed(packet: Publish) -> None:
    """Replace the topic form by the real topic and the property; PacketViolation when it is malformed."""
    if not packet.topic.startswith(DELAYED_PREFIX):
        return
    seconds, _, topic = packet.topic[len(DELAYED_PREFIX) :].partition(b"/")
    if not _is_number(seconds) or not topic:
        detail = "a topic below $delayed/ is $delayed/<seconds>/<topic>"
        raise PacketViolation(Reason.TOPIC_NAME_REFUSED, detail)
    packet.topic = topic
    original = packet.properties or MessageProperties()
    user = [pair for pair in original.user if pair[0] != DELAY_KEY]
    packet.properties = MessageProperties(
        original.payload_format,
        original.expiry_s,
        original.content_type,
        original.response_topic,
        original.correlation_data,
        [*user, (DELAY_KEY, b"%d" % (int(seconds) * 1_000))],
    )


def delay_refusal(limits: SessionLimits, properties: MessageProperties | None) -> tuple[ReasonCode, str] | None:
    """Why a message's delay is refused, as code and text; None when it is accepted or there is none."""
    if properties is None:
        return None
    delays = [value for key, value in properties.user if key == DELAY_KEY]
    if not delays:
        return None
    if len(delays) > 1 or not _is_number(delays[0]):
        return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "delay-ms is one number of milliseconds"
    if int(delays[0]) > limits.delay.s_max * 1_000:
        return ReasonCode.QUOTA_EXCEEDED, f"a delay of {int(delays[0])} ms, at most {limits.delay.s_max} s"
    return None


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= DIGITS_MAX
