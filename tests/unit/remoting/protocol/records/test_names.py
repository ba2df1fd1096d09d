"""Names: the codec is lossless over every class of characters and cannot reach a name it must not reach."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records import names

CATEGORIES = ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn")  # fmt: skip


@pytest.mark.parametrize("category", CATEGORIES)
def test_escape_is_lossless_for_every_unicode_class(category):
    @given(text=st.text(st.characters(categories=[category]), max_size=40))
    def check(text):
        escaped = names.escape(text.encode())
        assert re.fullmatch(rb"[A-Za-z0-9_%-]*", escaped)
        assert names.unescape(escaped) == text.encode()

    check()


@given(first=st.binary(max_size=12), second=st.binary(max_size=12))
def test_escape_is_injective(first, second):
    assert (names.escape(first) == names.escape(second)) == (first == second)


def test_topics_that_bare_percent_mapping_confused_stay_apart():
    topics = [b"a/b", b"a/b/", b"a%b", b"a,b", b"a%2Fb", b"a//b", b"/a/b", b"A/b"]
    assert len({names.light_queue_name(topic) for topic in topics}) == len(topics)
    assert all(b"," not in names.light_queue_name(topic) for topic in topics)
    assert names.light_queue_name(b"a/b") == b"%LMQ%a%2Fb"
    assert names.light_queue_topic(b"%LMQ%a%2Fb") == b"a/b"


@pytest.mark.parametrize("bad", [b"%", b"%2", b"%2f", b"%41", b"a/b", b"%GG", b"\xff", b"|a"])
def test_what_escape_never_writes_is_refused(bad):
    with pytest.raises(RemoteViolation):
        names.unescape(bad)


def test_names_of_other_queues_are_not_light_queues():
    with pytest.raises(RemoteViolation, match="not the name of a light queue"):
        names.light_queue_topic(b"plant")


@pytest.mark.parametrize(
    ("topic", "parent"),
    [
        (b"plant/7/temp", b"plant"),
        (b"plant", b"plant"),
        (b"/plant", b"%"),
        (b"$SYS/x", b"%24SYS"),
        (b"%RETRY%g/x", b"%25RETRY%25g"),
        (b"%/x", b"%25"),
        (b"TBW102/x", b"|TBW102"),
        (b"rmq_sys_wheel_timer/x", b"|rmq_sys_wheel_timer"),
        ("größe/x".encode(), b"gr%C3%B6%C3%9Fe"),
    ],
)
def test_parent_topics(topic, parent):
    assert names.parent_topic(topic) == parent
    assert names.valid_rocketmq_topic(parent.decode())


@given(topic=st.binary(max_size=300))
def test_every_parent_topic_is_a_topic_rocketmq_accepts(topic):
    parent = names.parent_topic(topic)
    assert names.valid_rocketmq_topic(parent.decode())
    assert not names.is_system_topic(parent)


def test_long_first_levels_stay_apart():
    first, second = (b"x" * 200 + suffix for suffix in (b"1", b"2"))
    assert names.parent_topic(first) != names.parent_topic(second)
    assert len(names.parent_topic(first)) <= names.TOPIC_CHARS_MAX
    assert names.parent_topic(b"x" * 127) == b"x" * 127


def test_queue_index_is_stable_and_in_range():
    assert names.queue_index(b"plant/7/temp", 4) == 1
    assert {names.queue_index(b"t/%d" % n, 4) for n in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "topic", "group"),
    [
        ("ok-_|%09Az", True, True),
        ("", False, False),
        ("a b", False, False),
        ("a/b", False, False),
        ("ü", False, False),
        ("a\n", False, False),
        ("x" * 120, True, True),
        ("x" * 121, True, False),
        ("x" * 127, True, False),
        ("x" * 128, False, False),
        ("%RETRY%" + "x" * 200, True, False),
        ("%DLQ%" + "x" * 251, False, False),
    ],
)
def test_rocketmq_names(name, topic, group):
    assert names.valid_rocketmq_topic(name) is topic
    assert names.valid_group(name) is group


def test_the_queue_of_a_key_is_the_one_java_chooses() -> None:
    # "abc".hashCode() = 96354, "polygenelubricants".hashCode() = -2147483648, "hashCode" of "device-7" = 780988859
    assert names.queue_of(b"abc", 7) == 96354 % 7
    assert names.queue_of(b"polygenelubricants", 7) == 2147483648 % 7
    for queues in range(1, 9):
        assert 0 <= names.queue_of(b"some key", queues) < queues


def test_only_exact_topics_have_a_key() -> None:
    assert names.topic_key(names.light_queue_name(b"a/b")) == b"a\x00b"
    others = [names.light_queue_name(b"a/#"), names.light_queue_name(b"a\x00b"), b"a\x000", b"%LMQ%a.b", b"%LMQ%"]
    assert [names.topic_key(name) for name in others] == [None] * 5
