"""Permissions for the topics of one connection: checked once, bounded, dropped when the rules change."""

from __future__ import annotations

from mqtt_proxy.access.permissions import JUDGED_TOPICS_MAX, JudgedTopics
from mqtt_proxy.mqtt.codec.packets import Publish
from remoting.access.rules import ANONYMOUS, RETAINED_MASK, WRITE_ALL_MASK, Identity, write_bit


class Judge:
    """Records what it was asked."""

    def __init__(self, mask: int = WRITE_ALL_MASK) -> None:
        self.mask = mask
        self.asked: list[bytes] = []

    def write_mask(self, identity: Identity, topic: bytes) -> int:
        assert identity is ANONYMOUS
        self.asked.append(topic)
        return 0 if topic == b"no" else self.mask


def publish(topic: bytes, qos: int = 0, *, retain: bool = False) -> Publish:
    return Publish(topic, b"", qos, retain, dup=False, packet_id=0)


def test_each_topic_is_judged_once() -> None:
    """The first refused one is named."""
    judge = Judge()
    asked, topics = judge.asked, JudgedTopics(judge, ANONYMOUS)
    no = publish(b"no")
    assert topics.first_refused([publish(b"a"), publish(b"b"), publish(b"a")]) is None
    assert topics.first_refused([publish(b"a"), no, publish(b"c")]) is no
    assert asked == [b"a", b"b", b"no"]
    topics.forget()
    topics.first_refused([publish(b"a")])
    assert asked[3:] == [b"a"]


def test_one_verdict_answers_for_every_kind_of_message() -> None:
    """QoS and retained are bits of the verdict."""
    mask = write_bit(0, retain=False) | write_bit(1, retain=True)
    topics = JudgedTopics(Judge(mask), ANONYMOUS)
    messages = [publish(b"a", qos, retain=retain) for qos in range(3) for retain in (False, True)]
    allowed, refused = topics.sift(messages)
    assert [(one.qos, one.retain) for one in allowed] == [(0, False), (1, True)]
    assert len(refused) == 4
    assert topics.first_refused(messages) is refused[0]


def test_the_cache_is_bounded() -> None:
    """Beyond the limit all topics are judged again."""
    judge = Judge()
    asked, topics = judge.asked, JudgedTopics(judge, ANONYMOUS)
    for number in range(JUDGED_TOPICS_MAX + 1):
        topics.first_refused([publish(b"%d" % number)])
    topics.first_refused([publish(b"0")])
    assert asked.count(b"0") == 2


def test_a_bridge_publishes_its_own_state_and_nothing_else() -> None:
    """The payload counts where the topic is the state of a bridge."""
    topics = JudgedTopics(Judge(RETAINED_MASK), ANONYMOUS)
    state = b"$SYS/broker/connection/a/state"

    def said(payload: bytes, *, retain: bool = True) -> Publish:
        return Publish(state, payload, 1, retain, dup=False, packet_id=1)

    good, bad = [said(b"1"), said(b"0"), said(b"")], [said(b"up"), said(b"1", retain=False)]
    assert topics.sift(good + bad) == (good, bad)
