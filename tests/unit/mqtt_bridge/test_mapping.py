from __future__ import annotations

from mqtt_bridge.config import RuleConfig
from mqtt_bridge.mapping import InMapping, OutMapping, Target, wrong_topic


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
    assert mapping.targets(b"plant", 1, retain=False) == []  # plant/# matches it, but there is nothing behind a prefix


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
