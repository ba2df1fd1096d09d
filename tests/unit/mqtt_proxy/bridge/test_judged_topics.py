"""Permissions of one connection's topics: asked once, bounded."""

from __future__ import annotations

from mqtt_proxy.bridge.judged_topics import JUDGED_TOPICS_MAX, JudgedTopics
from mqtt_proxy.mqtt.packets import Publish


def publish(topic: bytes) -> Publish:
    return Publish(topic, b"", 0, False, dup=False, packet_id=0)


def test_each_topic_is_judged_once() -> None:
    """The first refused one is named."""
    asked: list[bytes] = []

    def judge(topic: bytes) -> bool:
        asked.append(topic)
        return topic != b"no"

    topics = JudgedTopics(judge)
    assert topics.first_refused([publish(b"a"), publish(b"b"), publish(b"a")]) is None
    assert topics.first_refused([publish(b"a"), publish(b"no"), publish(b"c")]) == b"no"
    assert asked == [b"a", b"b", b"no"]


def test_what_is_remembered_is_bounded() -> None:
    """Beyond the limit all are judged again."""
    asked: list[bytes] = []
    topics = JudgedTopics(lambda topic: not asked.append(topic))
    for number in range(JUDGED_TOPICS_MAX + 1):
        topics.first_refused([publish(b"%d" % number)])
    topics.first_refused([publish(b"0")])
    assert asked.count(b"0") == 2
