"""What a bridge's configuration allows, and how it refuses the rest."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lightmq.configuration import load_configuration
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig, overlap
from remoting.client.master_link import Backoff
from remoting.protocol.records.topics import matches, validate_filter
from runtime.config import ConfigError

OUT = RuleConfig(filter="#", local_prefix="a/")


def connection(*rules: RuleConfig, name: str = "cloud", **settings: Any) -> ConnectionConfig:
    return ConnectionConfig(name=name, host="peer", rules=rules or (OUT,), **settings)


def test_a_file_says_it_all(tmp_path: Path) -> None:
    file = tmp_path / "lightmq.toml"
    file.write_text(
        """
        [bridge]
        name = "plant-7"
        [[bridge.connections]]
        name = "cloud"
        host = "mqtt.example.org"
        port = 8883
        tls = true
        username = "plant-7"
        password_file = "cloud.password"
        [[bridge.connections.rules]]
        filter = "#"
        local_prefix = "plant/"
        remote_prefix = "site/7/"
        [[bridge.connections.rules]]
        direction = "in"
        filter = "commands/#"
        """
    )
    value = load_configuration(file, {}).value.bridge
    assert value.name == "plant-7"
    [only] = value.connections
    assert (only.is_v5, only.tls, only.password_file) == (True, True, Path("cloud.password"))
    assert [(rule.local_filter, rule.remote_filter) for rule in only.rules] == [
        ("plant/#", "site/7/#"),
        ("commands/#", "commands/#"),
    ]
    assert [(rule.goes_out, rule.comes_in) for rule in only.rules] == [(True, False), (False, True)]
    both = RuleConfig(direction="both", filter="x")
    assert both.goes_out
    assert both.comes_in


def test_a_connection_needs_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "lightmq.toml"
    file.write_text('[bridge]\nname = "a"\n[[bridge.connections]]\nname = "cloud"\n')
    with pytest.raises(ConfigError, match=r"bridge.connections\[0\].host is missing"):
        load_configuration(file, {})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"filter": "a#"}, "must be the whole"),
        ({"filter": "#", "local_prefix": "a"}, "must be the whole"),
        ({"filter": "x", "remote_prefix": "+/"}, "no wildcard"),
        ({"filter": "$SYS/#"}, "broker's own"),
        ({"filter": "$share/g/x", "direction": "in", "local_prefix": "a/"}, "not as a member of a group"),
        ({"filter": "x", "direction": "in", "qos": 2}, "qos = 2 is for out"),
        ({"filter": "x", "direction": "both", "qos": 2}, "qos = 2 is for out"),
    ],
)
def test_invalid_rules(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        RuleConfig(**settings)


def test_invalid_connections() -> None:
    for wrong, words in (
        ({"name": "a b"}, "letters, digits"),
        ({"peer_name": "a/b"}, "letters, digits"),
        ({"certificate_file": Path("x")}, "belong together"),
        ({"ca_file": Path("x")}, "tls is not"),
    ):
        with pytest.raises(ValueError, match=words):
            connection(**wrong)
    with pytest.raises(ValueError, match="no rules"):
        ConnectionConfig(name="a", host="b")
    coming = [RuleConfig(filter=name, direction="in", local_prefix="x/") for name in ("a/#", "+/b")]
    with pytest.raises(ValueError, match="twice"):
        connection(*coming)


def test_invalid_combinations() -> None:
    with pytest.raises(ValueError, match="has a name"):
        BridgeConfig(connections=(connection(),))
    with pytest.raises(ValueError, match="two connections are called cloud"):
        BridgeConfig(name="a", connections=(connection(), connection()))
    with pytest.raises(ValueError, match="name of this installation"):
        BridgeConfig(name="a", connections=(connection(peer_name="a"),))


def test_loops_are_refused_with_3_1_1_and_only_there() -> None:
    back = RuleConfig(direction="in", filter="b/#", remote_prefix="a/", local_prefix="copy/")
    out = RuleConfig(filter="a/#")
    with pytest.raises(ValueError, match="would come back in by 'a/b/#'"):
        BridgeConfig(name="a", connections=(connection(out, back, version="3.1.1"),))
    BridgeConfig(name="a", connections=(connection(out, back),))
    apart = RuleConfig(direction="in", filter="#", remote_prefix="c/")
    BridgeConfig(name="a", connections=(connection(out, apart, version="3.1.1"),))
    two = (connection(out, name="x"), connection(back, name="y", version="3.1.1"))
    with pytest.raises(ValueError, match="connections x and y"):
        BridgeConfig(name="a", connections=two)
    elsewhere = ConnectionConfig(name="y", host="another", version="3.1.1", rules=(back,))
    BridgeConfig(name="a", connections=(connection(out, name="x", version="3.1.1"), elsewhere))
    with pytest.raises(ValueError, match="use version 5"):
        BridgeConfig(name="a", connections=(connection(RuleConfig(direction="both", filter="t"), version="3.1.1"),))


def test_a_peer_that_is_up_again_is_found_within_five_seconds() -> None:
    """However long it was down: a pause and an attempt together are shorter by default."""
    config = ConnectionConfig(name="p", host="h", rules=(RuleConfig(filter="#"),))
    backoff = Backoff(config.reconnect_delay_ms_min, config.reconnect_delay_ms_max)
    assert max(backoff.failed(0) or 0 for _ in range(100)) <= 4_000


LEVELS = ("a", "$b", "+", "#", "")
FILTERS = [
    text
    for count in (1, 2, 3)
    for levels in itertools.product(LEVELS, repeat=count)
    if validate_filter(text := "/".join(levels)) is None
]
TOPICS = [
    "/".join(levels) for count in (1, 2, 3, 4) for levels in itertools.product(("a", "$b", "", "x"), repeat=count)
]


def test_two_filters_overlap_exactly_when_a_topic_matches_both() -> None:
    """Every pair over a small alphabet, against every topic over it."""
    found = {name: {topic for topic in TOPICS if matches(name, topic)} for name in FILTERS}
    for one, two in itertools.product(FILTERS, repeat=2):
        assert overlap(one, two) == bool(found[one] & found[two]), (one, two)


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [("a/#", "a", True), ("a/+", "a", False), ("a/b/#", "a/+/c", True), ("#", "$SYS/x", False), ("a/b", "a/c", False)],
)
def test_examples(one: str, two: str, meet: bool) -> None:
    assert overlap(one, two) is meet
    assert overlap(two, one) is meet
