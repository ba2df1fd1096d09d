"""MQTT topics and filters: validation by clause, the trie and the tree against the plain matcher."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.records import topics
from remoting.protocol.records.topics import (
    FilterTrie,
    Share,
    TopicTree,
    inner_filter,
    matches,
    owner_of,
    says_something_else,
    share_of,
    validate_filter,
    validate_subscription,
    validate_topic_name,
)

LEVEL = st.sampled_from(["", "a", "b", "c", "$a", "ab"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(bool)
FILTER = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.one_of(LEVEL, st.just("+")), max_size=4),
    st.sampled_from([["#"], ["+"], ["a"], [""]]),
).filter(bool)


@pytest.mark.parametrize(
    ("wanted", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/", False),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/x", True),
        ("a/+", "a/$b", True),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/d", False),
        ("a/b/#", "a", False),
        ("A", "a", False),
    ],
)
def test_matching_by_the_examples_of_the_standard(wanted, topic, expected):
    assert matches(wanted, topic) is expected
    assert matches(wanted.encode(), topic.encode()) is expected
    trie = FilterTrie()
    trie.add(wanted, 1)
    assert trie.match(topic) == [1] * expected
    tree = TopicTree()
    tree.set(topic, 1)
    assert list(tree.match(wanted)) == [(topic.encode(), 1)] * expected


@given(
    filters=st.lists(st.tuples(FILTER, st.integers(0, 3)), max_size=12),
    removed=st.sets(st.integers(0, 11)),
    topic=TOPIC,
)
def test_trie_agrees_with_the_plain_matcher(filters, removed, topic):
    trie = FilterTrie()
    held = set()
    for pair in filters:
        assert trie.add(*pair) is (pair not in held)
        held.add(pair)
    for index in removed:
        if index < len(filters):
            assert trie.remove(*filters[index]) is (filters[index] in held)
            held.discard(filters[index])
    assert Counter(trie.match(topic)) == Counter(value for wanted, value in held if matches(wanted, topic))
    assert len(trie) == len(held)
    for pair in held:
        assert trie.remove(*pair)
    assert trie._root.children == {}, "removing everything must leave no node behind"


@given(held=st.dictionaries(TOPIC, st.integers(), max_size=15), deleted=st.sets(TOPIC, max_size=5), wanted=FILTER)
def test_tree_agrees_with_the_plain_matcher(held, deleted, wanted):
    tree = TopicTree()
    for topic, value in held.items():
        tree.set(topic, value)
    for topic in deleted:
        assert tree.delete(topic) is (held.pop(topic, None) is not None)
    found = list(tree.match(wanted))
    assert len(found) == len(dict(found))
    assert dict(found) == {topic.encode(): value for topic, value in held.items() if matches(wanted, topic)}
    assert len(tree) == len(held)
    assert all(tree.get(topic) == value for topic, value in held.items())
    for topic in list(held):
        assert tree.delete(topic)
    assert tree._root.children == {}


def test_tree_replaces_and_forgets():
    tree = TopicTree()
    tree.set("a/b", 1)
    tree.set(b"a/b", 2)
    assert (len(tree), tree.get("a/b"), tree.get("a"), tree.get("x")) == (1, 2, None, None)
    assert not tree.delete("a")
    assert not tree.delete("a/b/c")


def test_trie_forgets_only_what_it_holds():
    trie = FilterTrie()
    trie.add("a/+", 1)
    assert not trie.remove("a/+", 2)
    assert not trie.remove("a/+/b", 1)
    assert not trie.remove("x", 1)
    assert trie.match(b"a/b") == [1]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("a/b", None),
        ("/", None),
        ("$SYS/x", None),
        ("größe/☃", None),
        ("", "at least one character"),
        ("a\0b", r"U\+0000"),
        ("a/+", "no wildcard"),
        ("a/#", "no wildcard"),
        (b"\xff", "UTF-8"),
        ("\ud800", "UTF-8"),
        ("x" * 16_385, "16385 bytes"),
        ("/" * 128, "129 levels"),
    ],
)
def test_topic_names(topic, error):
    import re

    answer = validate_topic_name(topic)
    assert answer is None if error is None else re.search(error, answer)


@pytest.mark.parametrize(
    ("wanted", "valid"),
    [
        ("#", True),
        ("+", True),
        ("a/+/b/#", True),
        ("/", True),
        ("a#", False),
        ("a/#/b", False),
        ("#/a", False),
        ("a+", False),
        ("a/+b/c", False),
        ("##", False),
        ("", False),
        ("a\0", False),
    ],
)
def test_filters(wanted, valid):
    assert (validate_filter(wanted) is None) is valid
    assert (validate_filter(wanted.encode()) is None) is valid


def test_is_wildcard():
    assert topics.is_wildcard("a/+")
    assert topics.is_wildcard(b"#")
    assert not topics.is_wildcard("a/b")


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("$share/g/a", Share("g", "a")),
        ("$share/g/a/+/#", Share("g", "a/+/#")),
        ("$share/g//a", Share("g", "/a")),
        ("$share/g", Share("g", "")),
        ("$share//a", Share("", "a")),
        ("$share", None),
        ("$shared/g/a", None),
        ("a/$share/g", None),
    ],
)
def test_parts(name: str, share: Share | None) -> None:
    """Only a name that begins with `$share/` has parts."""
    assert share_of(name) == share
    assert inner_filter(name) == (name if share is None else share.filter)


@pytest.mark.parametrize(
    "name",
    [
        "$share/g/a", "$share/g/#", "$share/g/+/x", "$share/g//", "$share", "a/+", "$SYS/#", "$queue", "$queues/a",
        "$share/g/$SYS/broker/connection/+/state", "a/$queue/b",
    ],
)  # fmt: skip
def test_valid(name: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2] a share name, a slash, a topic filter; or an ordinary filter."""
    assert validate_subscription(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "$share/",
        "$queue/a",
        "$exclusive/a",
        "$delayed/#",
        "$share/g/$queue/a",
        "$share/g/$SYS/#",
        "$share/g/$SYS/broker/uptime",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/a#/b",
        "$share/g/a#",
        "$share/g/$share/h/a",
        "$share/g/$history/last=1/a",
    ],
)
def test_refused(name: str) -> None:
    """An empty share name, one with a wildcard, a missing or invalid inner filter, a share within a share."""
    assert validate_subscription(name) is not None


@pytest.mark.parametrize(
    ("topic", "owner"),
    [
        (b"$SYS/broker/connection/host.name/state", b"host.name"),
        (b"$SYS/broker/connection/\xc3\xa4/state", b"\xc3\xa4"),
        (b"$SYS/broker/connection//state", None),
        (b"$SYS/broker/connection/state", None),
        (b"$SYS/broker/connection/a/b/state", None),
        (b"$SYS/broker/connection/a/state/", None),
        (b"$SYS/broker/connection/a/State", None),
        (b"/$SYS/broker/connection/a/state", None),
        (b"$SYS/broker/version", None),
        (b"$sys/broker/connection/a/state", None),
    ],
)
def test_owner_of(topic: bytes, owner: bytes | None) -> None:
    """One level names the client; similar topics do not."""
    assert owner_of(topic) == owner


def test_states() -> None:
    """Connected, not connected, forgotten; other topics may have any payload."""
    topic = b"$SYS/broker/connection/a/state"
    assert not any(says_something_else(topic, payload) for payload in (b"", b"0", b"1", memoryview(b"1")))
    assert all(says_something_else(topic, payload) for payload in (b"2", b"10", b"1" * 1_000_000))
    assert not says_something_else(b"a", b"anything")


@given(held=st.dictionaries(TOPIC, st.integers(), max_size=15), changed=st.lists(TOPIC, max_size=8), wanted=FILTER)
def test_a_walk_finds_all_that_stays_while_topics_come_and_go(held, changed, wanted):
    tree, changes = TopicTree(), iter(changed)
    for topic, value in held.items():
        tree.set(topic, value)
    expected = {topic for topic, _ in tree.match(wanted)} - {topic.encode() for topic in changed}
    found = set()
    for one in tree.walk(wanted):
        found |= set() if one is None else {one[0]}
        topic = next(changes, None)
        if topic is not None and not tree.delete(topic):
            tree.set(topic, 0)
    assert expected <= found
