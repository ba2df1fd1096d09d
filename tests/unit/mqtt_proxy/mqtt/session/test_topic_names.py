"""Names and filters a session accepts, and the cache of names."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from mqtt_proxy.mqtt.session import topic_names
from mqtt_proxy.mqtt.session.topic_names import TopicNames, check_properties
from remoting.protocol.records.properties import MessageProperties


def make() -> TopicNames:
    return TopicNames(SessionLimits(topic_bytes_max=300))


@pytest.mark.parametrize("topic", [b"a", b"/", b"a//b", "ä/ö".encode(), b"\xef\xbb\xbfbom"])
def test_valid_names_are_cached(topic: bytes) -> None:
    """Every valid name, empty levels and a leading BOM included."""
    names = make()
    names.check_name(topic)
    assert topic in names.known
    names.check_name(topic)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"", "topic_name"),
        (b"a/+", "topic_name"),
        (b"a/#", "topic_name"),
        (b"a#", "topic_name"),
        (b"a\0b", "malformed_string"),
        (b"\xff", "malformed_string"),
        (b"x" * 301, "topic_name_refused"),
        (b"/" * 290, "topic_name_refused"),
    ],
)
def test_invalid_names(topic: bytes, reason: str) -> None:
    """[MQTT-4.7.3-3] Empty, with wildcards, not text, too long, too deep; none of them is cached."""
    names = make()
    with pytest.raises(PacketViolation) as refused:
        names.check_name(topic)
    assert refused.value.reason == reason
    assert not names.known


@pytest.mark.parametrize("topic_filter", ["#", "+", "a/+/#", "/", "+/+", "$SYS/#"])
def test_valid_filters(topic_filter: str) -> None:
    """Wildcards as whole levels."""
    make().check_filter(topic_filter)


@pytest.mark.parametrize("topic_filter", ["", "a#", "#/a", "a/b+", "+a", "x" * 301])
def test_invalid_filters(topic_filter: str) -> None:
    """[MQTT-4.7.3-3] Wildcards elsewhere, empty, too long."""
    with pytest.raises(PacketViolation, match="topic_filter"):
        make().check_filter(topic_filter)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full cache is emptied; long names are not cached at all."""
    monkeypatch.setattr(topic_names, "KNOWN_TOPICS_MAX", 2)
    names = make()
    for topic in (b"a", b"b", b"c", b"x" * 299):
        names.check_name(topic)
    assert names.known == {b"c": b"c"}


def test_levels_are_limited() -> None:
    """Names and filters alike; the limit itself is allowed."""
    names = TopicNames(SessionLimits(topic_levels_max=3))
    names.check_name(b"a/b/c")
    names.check_filter("a/+/#")
    with pytest.raises(PacketViolation, match="4 levels, at most 3"):
        names.check_name(b"a/b/c/d")
    with pytest.raises(PacketViolation, match="4 levels, at most 3"):
        names.check_filter("a/b/c/#")


def test_topics_that_begin_with_a_dollar_are_never_cached() -> None:
    """They may stand for another topic, so the hot loop must not accept them."""
    names = make()
    names.check_name(b"$delayed/5/a")
    names.check_name(b"$SYS/x")
    assert names.known == {}


def test_user_properties_are_limited() -> None:
    """By their number."""
    limits = SessionLimits(user_properties_max=2)
    check_properties(limits, MessageProperties(user=[(b"a", b""), (b"b", b"")]))
    with pytest.raises(PacketViolation, match="3 user properties, at most 2") as refused:
        check_properties(limits, MessageProperties(user=[(b"a", b""), (b"b", b""), (b"a", b"")]))
    assert refused.value.reason == "user_properties"
