"""Messages at either side: their topics by the rules of a connection, their marks, their content, and what is counted.

Topics. Out: a message goes once to each topic that a rule gives it, with the highest QoS those rules allow. In: the
rules do not overlap, so at most one applies. Invariant: a mapped topic differs from the original in its prefix alone.

Content. From a record of our log to what is published at the peer, and from a message of the peer to a record image.
Invariant: with MQTT 5 every property of a message arrives at the other side, with what is left of its expiry; with
3.1.1 there are none.

Marks: where a message has been, so that none travels in a circle. `mqttBridge` is a property of our record: the
connection by which the message came in; it never leaves by that connection again. `lightmq-bridge` is an MQTT 5 user
property (and as such a property of the record): one for each installation that sent the message on, in order; an
installation drops what carries its own name. With 3.1.1 there is no such property: there a message that came by any
bridge stays, unless the operator vouches for the absence of circles; so does what a bridge brought here over 3.1.1,
as its client id shows. Invariant: what `why_not_out` lets pass over MQTT 5 carries our name afterwards.

Counters: every path that drops, refuses or closes has one with a reason, and a log event beside it. They are written on
the event loop's thread only; all else is pure functions, and the time comes from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mqtt_bridge.config import CLIENT_ID_PREFIX, ConnectionConfig, RuleConfig
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.properties import BRIDGE_KEY, MessageProperties, from_pairs, to_pairs
from remoting.protocol.records.record import (
    CLIENT_ID_KEY,
    FLAG_MQTT,
    FLAG_QOS_MASK,
    FLAG_RETAIN,
    MQTT_TOPIC_KEY,
    RecordView,
)
from remoting.protocol.records.topics import FilterTrie, validate_topic_name
from runtime.logs import get_logger
from runtime.metrics import Registry


class Target(msgspec.Struct, frozen=True, gc=False):
    """Where one copy of a message goes."""

    topic: bytes
    qos: int
    retain: bool


class OutMapping:
    """The `out` rules of a connection."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        self.rules = [rule for rule in rules if rule.goes_out]
        self._trie: FilterTrie[RuleConfig] = FilterTrie()
        for rule in self.rules:
            self._trie.add(rule.local_filter, rule)

    def parents(self) -> list[str]:
        """Parent topics that the rules name by their first level."""
        return sorted({parent for rule in self.rules if (parent := parent_of(rule)) is not None})

    @property
    def covers_all(self) -> bool:
        """Whether a rule begins with a wildcard, so that any parent topic may hold its messages."""
        return any(parent_of(rule) is None for rule in self.rules)

    def covering(self, parent: str) -> list[RuleConfig]:
        """The rules whose messages a parent topic may hold."""
        return [rule for rule in self.rules if parent_of(rule) in (None, parent)]

    def targets(self, topic: bytes, qos: int, *, retain: bool) -> list[Target]:
        """Where a message goes, one target per topic at the peer."""
        found: dict[bytes, Target] = {}
        for rule in self._trie.match(topic):
            remote = _moved(topic, rule.local_prefix, rule.remote_prefix)
            if remote is None:
                continue
            target = Target(remote, min(qos, rule.qos), retain and rule.retain)
            known = found.get(remote)
            if known is None or known.qos < target.qos:
                found[remote] = target
        return list(found.values())


class InMapping:
    """The `in` rules of a connection."""

    def __init__(self, rules: Sequence[RuleConfig]) -> None:
        self.rules = [rule for rule in rules if rule.comes_in]
        self._trie: FilterTrie[RuleConfig] = FilterTrie()
        for rule in self.rules:
            self._trie.add(rule.remote_filter, rule)

    def target(self, topic: bytes, qos: int, *, retain: bool) -> Target | None:
        """Where a message of the peer goes; None when no rule wants it (one that was configured earlier may have)."""
        for rule in self._trie.match(topic):
            local = _moved(topic, rule.remote_prefix, rule.local_prefix)
            if local is not None:
                return Target(local, min(qos, rule.qos), retain and rule.retain)
        return None


def _moved(topic: bytes, old: str, new: str) -> bytes | None:
    """The topic with another prefix; None for `plant`, which `plant/#` matches but which does not begin with it."""
    before = old.encode()
    return new.encode() + topic[len(before) :] if topic.startswith(before) and topic != before else None


def parent_of(rule: RuleConfig) -> str | None:
    """The parent topic of everything a rule sends; None when it begins with a wildcard."""
    first = rule.local_filter.partition("/")[0]
    return None if first in ("+", "#") else parent_topic(first.encode()).decode()


def wrong_topic(topic: bytes) -> str:
    """What keeps a mapped topic from being one; empty if nothing does."""
    if topic.startswith(b"$"):
        return "a topic that begins with $ is the broker's own"
    return validate_topic_name(topic) or ""


Pairs = Sequence[tuple[bytes, bytes]]

CAME_BY_KEY = BRIDGE_KEY
"""Record property: name of the connection by which a message came in."""
TRAIL_KEY = b"lightmq-bridge"
"""User property: an installation that sent the message on."""

CAME_BY_IT = "came_by_it"
CAME_FROM_PEER = "came_from_peer"
WAS_HERE = "was_here"
CAME_BY_A_BRIDGE = "came_by_a_bridge"
REASONS = (CAME_BY_IT, CAME_FROM_PEER, WAS_HERE, CAME_BY_A_BRIDGE)


@dataclass(frozen=True, slots=True)
class Place:
    """Our end of one connection."""

    installation: bytes
    connection: bytes
    peer: bytes
    """Name of the installation at the other end, empty if it is not known or none of ours."""
    is_v5: bool
    forward_bridged: bool


def place_of(installation: str, config: ConnectionConfig) -> Place:
    """Our end of a connection as its marks need it."""
    return Place(
        installation.encode(), config.name.encode(), config.peer_name.encode(), config.is_v5, config.forward_bridged
    )


def trail(pairs: Pairs) -> list[bytes]:
    """Installations that sent a message on, in order."""
    return [value for key, value in pairs if key == TRAIL_KEY]


def why_not_out(place: Place, pairs: Pairs) -> str:
    """Why a record with these properties does not go to the peer; empty when it does."""
    came_by = client_id = b""
    for key, value in pairs:
        if key == CAME_BY_KEY:
            came_by = value
        elif key == CLIENT_ID_KEY:
            client_id = client_id or value
    been = trail(pairs)
    if came_by == place.connection:
        return CAME_BY_IT
    if place.installation in been:
        return WAS_HERE
    if place.peer and (place.peer in been or client_id.startswith(_clients_of(place.peer))):
        return CAME_FROM_PEER
    untold = not been and client_id.startswith(CLIENT_ID_PREFIX.encode()) and not came_by
    bridged = untold or (not place.is_v5 and (came_by or been))
    if bridged and not place.forward_bridged:
        return CAME_BY_A_BRIDGE
    return ""


def why_not_in(place: Place, user: Pairs) -> str:
    """Why a message with these user properties is not stored here; empty when it is."""
    return WAS_HERE if place.installation in trail(user) else ""


def outgoing_user(place: Place, user: Pairs) -> list[tuple[bytes, bytes]]:
    """The user properties to send: ours is the last name of the trail."""
    return [*user, (TRAIL_KEY, place.installation)]


def client_id(installation: str, config: ConnectionConfig, direction: str) -> str:
    """Our client id at the peer in one direction."""
    return f"{config.client_id or f'{CLIENT_ID_PREFIX}{installation}-{config.name}'}-{direction}"


def _clients_of(installation: bytes) -> bytes:
    return CLIENT_ID_PREFIX.encode() + installation + b"-"


EXPIRED = "expired"
PACKET_OVERHEAD_BYTES = 64
"""Room for the fixed header, lengths, packet id and the fixed-size properties of a PUBLISH."""
PROPERTY_OVERHEAD_BYTES = 5
"""Identifier and two lengths of a user property."""


class OutgoingCopy(msgspec.Struct):
    """One copy of a message for the peer."""

    target: Target
    payload: bytes
    properties: MessageProperties | None = None

    @property
    def size_bytes(self) -> int:
        """At most this many bytes on the wire."""
        size = len(self.target.topic) + len(self.payload) + PACKET_OVERHEAD_BYTES
        properties = self.properties
        if properties is not None:
            texts = (properties.content_type, properties.response_topic, properties.correlation_data)
            size += sum(len(text or b"") for text in texts)
            size += sum(len(key) + len(value) + PROPERTY_OVERHEAD_BYTES for key, value in properties.user)
        return size


def outgoing(record: RecordView, mapping: OutMapping, place: Place, now_ms: int) -> tuple[list[OutgoingCopy], str]:
    """The copies of a record to send, and if a rule wants it but none goes, why."""
    topic = record.mqtt_topic
    if topic is None:
        return [], ""
    flags = record.flags
    targets = mapping.targets(topic, flags & FLAG_QOS_MASK, retain=bool(flags & FLAG_RETAIN))
    if not targets:
        return [], ""
    pairs = record.properties()
    reason = why_not_out(place, pairs)
    if reason:
        return [], reason
    properties = from_pairs(pairs) or MessageProperties()
    if properties.expiry_s is not None:
        properties.expiry_s -= max(0, now_ms - record.store_ms) // 1000
        if properties.expiry_s <= 0:
            return [], EXPIRED
    properties.user = outgoing_user(place, properties.user)
    payload = bytes(record.body)
    return [OutgoingCopy(target, payload, properties if place.is_v5 else None) for target in targets], ""


def to_image(
    target: Target, payload: bytes, properties: MessageProperties | None, place: Place, *, client: bytes, now_ms: int
) -> bytes:
    """The record image of a message that came from the peer; LocalMisuse if a part of it does not fit."""
    pairs = [(MQTT_TOPIC_KEY, target.topic), (CLIENT_ID_KEY, client)]
    if properties is not None:
        pairs += to_pairs(properties)
    pairs.append((CAME_BY_KEY, place.connection))
    return encode_image(
        flags=FLAG_MQTT | target.qos | (FLAG_RETAIN if target.retain else 0),
        born_ms=now_ms,
        topic=parent_topic(target.topic),
        properties=pairs,
        body=payload,
    )


class BridgeMetrics:
    """The bridge's counters; each has the connection's name as its first label."""

    def __init__(self, registry: Registry) -> None:
        both = ("connection", "direction")
        counter, gauge = registry.counter, registry.gauge
        self.messages = counter("rocketmq_bridge_messages_total", "Messages that reached the other side", both)
        self.repeated = counter("rocketmq_bridge_repeated_total", "Messages sent again after a connection ended", both)
        self.kept_back = counter(
            "rocketmq_bridge_kept_back_total", "Messages not sent on so that none goes in a circle", (*both, "reason")
        )
        self.dropped = counter(
            "rocketmq_bridge_dropped_total", "Messages that will not reach the other side", (*both, "reason")
        )
        self.skipped = counter(
            "rocketmq_bridge_skipped_total",
            "Messages deleted by retention before they were sent",
            ("connection", "reason"),
        )
        self.connects = counter("rocketmq_bridge_connects_total", "Connections the peer welcomed", both)
        self.disconnects = counter("rocketmq_bridge_disconnects_total", "Connections and attempts that ended", both)
        self.connected = gauge("rocketmq_bridge_connected", "1 while the peer is there", both)
        self.lag = gauge(
            "rocketmq_bridge_lag_messages",
            "Records of the log the bridge has yet to look at or settle",
            ("connection",),
        )
        self.in_flight = gauge(
            "rocketmq_bridge_in_flight_messages", "Messages sent and not acknowledged by the peer", ("connection",)
        )
        self.unconfirmed_bytes = gauge(
            "rocketmq_bridge_unconfirmed_bytes", "Bytes taken from the peer and not stored yet", ("connection",)
        )


class MessageCounts:
    """What becomes of the messages of one direction of one connection: counted, and logged where one is lost."""

    def __init__(self, metrics: BridgeMetrics, connection: str, direction: str) -> None:
        self.passed = metrics.messages.child(connection, direction)
        """Messages that reached the other side."""
        self.repeated = metrics.repeated.child(connection, direction)
        self._metrics = metrics
        self._labels = {"connection": connection, "direction": direction}
        self._log = get_logger(f"bridge.{direction}")

    def drop(self, reason: str, *what: object) -> None:
        """A message that will never reach the other side."""
        self._metrics.dropped.child(*self._labels.values(), reason).value += 1
        self._log.warning("message_dropped", **self._labels, reason=reason, what=what)

    def expire(self) -> None:
        """A message that expired before it was sent."""
        self._metrics.dropped.child(*self._labels.values(), "expired").value += 1

    def keep_back(self, reason: str) -> None:
        """A message that is not sent on so that none goes in a circle."""
        self._metrics.kept_back.child(*self._labels.values(), reason).value += 1

    def skip(self, reason: str, topic: str, count: int) -> None:
        """Messages that were deleted from the log before they were sent."""
        self._metrics.skipped.child(self._labels["connection"], reason).value += count
        self._log.warning(
            "messages_skipped", connection=self._labels["connection"], topic=topic, reason=reason, messages=count
        )
