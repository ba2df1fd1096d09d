"""Topic aliases of one connection, both ways: a number in the place of a topic's name (MQTT 5).

Invariant: an alias means something on this connection only, and only from the PUBLISH that carried both [3.3.2.3.4].
Both tables are bounded by the maximum their receiver announced; a full table of ours gives no further alias.
Loop rule: one connection.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason

ALIASED_TOPIC_BYTES_MIN = 4
"""A shorter topic costs less than the property that would stand for it."""


class IncomingAliases:
    """What the client's aliases stand for."""

    __slots__ = ("_maximum", "_names")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._names: dict[int, bytes] = {}

    def resolve(self, alias: int, topic: bytes) -> bytes:
        """The topic of a PUBLISH; `alias` 0 = it has none. Raises PacketViolation."""
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
    """The aliases we have given."""

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
        """The PUBLISH that tells the client of this alias is on its way."""
        self._numbers[topic] = alias
