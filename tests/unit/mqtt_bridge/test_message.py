"""Records of the log and messages of the peer, converted in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from mqtt_bridge.config import ConnectionConfig, RuleConfig
from mqtt_bridge.message import (
    CAME_BY_IT,
    CAME_BY_KEY,
    EXPIRED,
    BridgeMetrics,
    InMapping,
    OutgoingCopy,
    OutMapping,
    Place,
    Target,
    outgoing,
    place_of,
    to_image,
    wrong_topic,
)
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import image_views
from remoting.protocol.records.properties import MessageProperties, to_pairs
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, MESSAGE, RecordView, encode_record
from runtime.metrics import Registry

MAPPING = OutMapping([RuleConfig(filter="a/#", remote_prefix="x/", qos=2)])


def place(version: str = "5") -> Place:
    return place_of("here", ConnectionConfig(name="cloud", host="h", version=version, rules=(RuleConfig(filter="#"),)))


def record(topic: bytes, *more: tuple[bytes, bytes], flags: int = FLAG_MQTT | 1, store_ms: int = 1_000) -> RecordView:
    """A record as the broker writes it."""
    pairs = [(b"originMqttTopic", topic), (b"clientId", b"device"), *more]
    raw = b"".join(key + value for key, value in pairs)
    lengths = b"".join(len(part).to_bytes(2, "little") for pair in pairs for part in pair)
    parts: dict[str, Any] = {"epoch": 1, "position": 0, "born_ms": 1, "count": 1, "dispatch": [(3, 9)], "tag_hash": 0}
    return RecordView(
        encode_record(
            magic_type=MESSAGE, store_ms=store_ms, flags=flags, counts=(len(pairs), 1, 0, 0, len(raw)), producer_seq=0,
            meta=lengths + b"a" + raw, body=b"payload", **parts,
        )
    )  # fmt: skip


def test_a_record_is_sent_with_its_properties_and_the_bridges_name() -> None:
    said = MessageProperties(content_type=b"text/plain", expiry_s=60, user=[(b"k", b"1"), (b"k", b"2")])
    [copy], reason = outgoing(
        record(b"a/b", *to_pairs(said), flags=FLAG_MQTT | FLAG_RETAIN | 2), MAPPING, place(), 11_500
    )
    assert reason == ""
    assert copy.target == Target(b"x/a/b", 2, True)
    assert copy.payload == b"payload"
    assert copy.properties is not None
    assert copy.properties.expiry_s == 50
    assert copy.properties.content_type == b"text/plain"
    assert copy.properties.user == [(b"k", b"1"), (b"k", b"2"), (b"lightmq-bridge", b"here")]
    [plain], _ = outgoing(record(b"a/b", *to_pairs(said)), MAPPING, place("3.1.1"), 11_500)
    assert plain.properties is None


def test_what_is_not_sent_has_a_reason() -> None:
    expiring = to_pairs(MessageProperties(expiry_s=10))
    assert outgoing(record(b"a", *expiring), MAPPING, place(), 11_000) == ([], EXPIRED)
    assert outgoing(record(b"a", (CAME_BY_KEY, b"cloud")), MAPPING, place(), 0) == ([], CAME_BY_IT)
    assert outgoing(record(b"b", (CAME_BY_KEY, b"cloud")), MAPPING, place(), 0) == ([], "")
    assert outgoing(record(b"a", flags=0), MAPPING, place(), 0) == ([], "")


def test_the_size_counts_everything_that_can_be_long() -> None:
    bare = OutgoingCopy(Target(b"t", 1, False), b"12345")
    said = MessageProperties(content_type=b"1" * 100, correlation_data=b"2" * 10, user=[(b"3" * 20, b"4" * 30)])
    assert OutgoingCopy(bare.target, bare.payload, said).size_bytes == bare.size_bytes + 100 + 10 + 20 + 30 + 5


def test_a_message_of_the_peer_becomes_an_image_with_the_mark() -> None:
    said = MessageProperties(response_topic=b"r", user=[(b"k", b"v")])
    made = to_image(Target(b"cloud/on", 1, True), b"p", said, place(), client=b"me", now_ms=77)
    [decoded] = image_views(made)
    assert (decoded.topic, decoded.mqtt_topic, decoded.born_ms, decoded.body) == (b"cloud", b"cloud/on", 77, b"p")
    assert decoded.flags == FLAG_MQTT | FLAG_RETAIN | 1
    for part in (b"clientIdme", b"mqttResponseTopicr", b"kv", b"mqttBridgecloud"):
        assert part in bytes(decoded.meta)
    with pytest.raises(LocalMisuse):
        to_image(
            Target(b"t", 1, False), b"", MessageProperties(user=[(b"k", b"v" * 70_000)]), place(), client=b"", now_ms=0
        )


def test_out_changes_the_prefix_and_sends_one_copy_per_topic() -> None:
    rules = [
        RuleConfig(filter="#", local_prefix="plant/", remote_prefix="site/7/", qos=2),
        RuleConfig(filter="+/alarm", local_prefix="plant/", remote_prefix="site/7/", qos=0),
        RuleConfig(filter="plant/1/#", remote_prefix="copy/", retain=False),
        RuleConfig(direction="in", filter="plant/#"),
    ]
    mapping = OutMapping(rules)
    assert mapping.targets(b"plant/1/alarm", 2, retain=True) == [
        Target(b"site/7/1/alarm", 2, True),
        Target(b"copy/plant/1/alarm", 1, False),
    ]
    assert mapping.targets(b"plant/2/x", 1, retain=False) == [Target(b"site/7/2/x", 1, False)]
    assert mapping.targets(b"other", 1, retain=False) == []
    assert mapping.targets(b"plant", 1, retain=False) == []  # plant/# matches it, but nothing follows the prefix


def test_which_parent_topics_are_to_be_read() -> None:
    rules = [RuleConfig(filter="a/b/#"), RuleConfig(filter="#", local_prefix="a/c/"), RuleConfig(filter="c d/+")]
    mapping = OutMapping(rules)
    assert mapping.parents() == ["a", "c%20d"]
    assert not mapping.covers_all
    assert mapping.covering("a") == rules[:2]
    wide = OutMapping([*rules, RuleConfig(filter="+/x")])
    assert wide.covers_all
    assert wide.covering("z") == wide.rules[3:]


def test_in_changes_the_prefix_back() -> None:
    mapping = InMapping([RuleConfig(direction="in", filter="#", local_prefix="cloud/", remote_prefix="cmd/7/")])
    assert mapping.target(b"cmd/7/on", 2, retain=True) == Target(b"cloud/on", 1, True)
    assert mapping.target(b"cmd/7", 1, retain=False) is None
    assert mapping.target(b"elsewhere", 1, retain=False) is None


def test_topics_that_cannot_be_published_to() -> None:
    assert wrong_topic(b"a/b") == ""
    assert "broker's own" in wrong_topic(b"$SYS/x")
    assert "wildcard" in wrong_topic(b"a/+")


def test_each_has_the_connection_as_its_first_label() -> None:
    registry = Registry()
    BridgeMetrics(registry)
    declared = list(registry.metrics())
    assert len(declared) == 11
    assert all(metric.labels[0] == "connection" and metric.name.startswith("rocketmq_bridge_") for metric in declared)
