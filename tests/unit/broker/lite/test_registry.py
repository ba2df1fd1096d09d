"""The registry of lite topics' clients against a naive model, and the rules in attributes and names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.lite.registry import (
    LiteRegistry,
    LiteRules,
    group_rules,
    lite_topic_of,
    parent_of,
    problem_of,
    queue_name,
    queue_prefix,
    shown_name,
)

PARENT = "agents"
SHARED = LiteRules(PARENT, False, False, 10, False, False)
WILD = LiteRules(PARENT, False, True, 10, False, False)
RULES = {"g1": SHARED, "g2": SHARED, "wild": WILD}
NAMES = [queue_name(PARENT, f"t{number}") for number in range(4)]
CLIENTS = [("g1", "a"), ("g1", "b"), ("g2", "a"), ("wild", "a"), ("wild", "b")]

name_sets = st.lists(st.sampled_from(NAMES), max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(CLIENTS[:3]), name_sets),
        st.tuples(st.just("drop"), st.sampled_from(CLIENTS), st.just(None)),
        st.tuples(st.just("join"), st.sampled_from(CLIENTS[3:]), st.just(None)),
        st.tuples(st.just("notify"), st.just(None), st.sampled_from(NAMES)),
        st.tuples(st.just("group"), st.sampled_from(sorted(RULES)), st.sampled_from(NAMES)),
        st.tuples(st.just("take"), st.sampled_from(CLIENTS), st.just(None)),
    ),
    max_size=40,
)


class Model:
    """Sets of names and lists of events by client; the clients of the wildcard group have one list."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], set[bytes]] = {}
        self.events: dict[object, list[bytes]] = {}

    def feed(self, client: tuple[str, str]) -> object:
        return "wild" if client[0] == "wild" else client

    def join(self, client: tuple[str, str]) -> None:
        self.names.setdefault(client, set())
        self.events.setdefault(self.feed(client), [])

    def note(self, name: bytes, clients: list[tuple[str, str]]) -> None:
        for client in clients:
            events = self.events[self.feed(client)]
            if name not in events:
                events.append(name)

    def wanting(self, name: bytes) -> list[tuple[str, str]]:
        return [each for each, names in self.names.items() if each[0] == "wild" or name in names]

    def drop(self, client: tuple[str, str]) -> None:
        if self.names.pop(client, None) is not None and not any(
            self.feed(other) == self.feed(client) for other in self.names
        ):
            del self.events[self.feed(client)]


def apply(registry: LiteRegistry, model: Model, action: str, who: Any, what: Any) -> None:
    """One step in both; what it returns is compared."""
    if action in ("add", "remove", "join"):
        client = registry.client(*who, RULES[who[0]], 0)
        model.join(who)
        if action == "add":
            assert set(registry.add(client, what)) == set(what) - model.names[who]
            model.names[who].update(what)
        elif action == "remove":
            assert set(registry.remove(client, what)) == set(what) & model.names[who]
            model.names[who].difference_update(what)
            model.events[who] = [name for name in model.events[who] if name not in what]
    elif action == "drop":
        if who in registry.clients:
            registry.drop(registry.clients[who])
        model.drop(who)
    elif who in registry.clients:
        events = model.events[model.feed(who)]
        assert registry.clients[who].feed.take() == (events.pop(0) if events else None)


@given(steps)
def test_feeds_and_subscriptions_are_those_of_a_naive_model(done: list[tuple[str, Any, Any]]) -> None:
    registry, model = LiteRegistry(), Model()
    for action, who, what in done:
        if action == "notify":
            registry.notify(what, PARENT)
            model.note(what, model.wanting(what))
        elif action == "group":
            registry.notify_group(who, RULES[who], what)
            model.note(what, [each for each in model.wanting(what) if each[0] == who])
        else:
            apply(registry, model, action, who, what)
        assert {key: client.names for key, client in registry.clients.items()} == model.names
        assert registry.subscriptions == sum(map(len, model.names.values()))
        for key, client in registry.clients.items():
            assert list(client.feed.events) == model.events[model.feed(key)]
        for name in NAMES:
            found = sorted((each.group, each.client_id) for each in registry.subscribers(name))
            assert found == sorted(key for key, names in model.names.items() if name in names)


def test_a_group_whose_rules_change_begins_with_a_new_client() -> None:
    registry = LiteRegistry()
    before = registry.client("g", "a", SHARED, 0)
    registry.add(before, NAMES)
    after = registry.client("g", "a", WILD, 1)
    assert after is not before
    assert registry.subscriptions == 0
    assert registry.owner("g", NAMES[0]) is None


def test_silent_clients_are_forgotten() -> None:
    registry = LiteRegistry()
    registry.client("g", "old", SHARED, 0)
    registry.client("g", "new", SHARED, 50)
    assert registry.expire(101, 100) == 1
    assert [client.client_id for client in registry.of_group("g")] == ["new"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, None),
        ({"lite.bind.topic": "p"}, LiteRules("p", False, False, 2_000, False, False)),
        (
            {"lite.bind.topic": "p", "lite.sub.model": "Exclusive", "lite.sub.client.quota": "-1"},
            LiteRules("p", True, False, -1, False, False),
        ),
        (
            {"lite.bind.topic": "p", "lite.sub.wildcard": "", "lite.sub.reset.offset.unsubscribe": "true"},
            LiteRules("p", False, True, 2_000, False, True),
        ),
        (
            {"lite.bind.topic": "p", "lite.sub.reset.offset.exclusive": "true"},
            LiteRules("p", False, False, 2_000, True, False),
        ),
    ],
)
def test_the_rules_of_a_group_are_in_its_attributes(attributes: dict[str, str], expected: LiteRules | None) -> None:
    assert group_rules(attributes) == expected


@given(st.text(min_size=1, max_size=20).filter(lambda text: problem_of(PARENT, text) is None))
def test_a_lite_topic_and_its_queue_name_each_other(lite_topic: str) -> None:
    name = queue_name(PARENT, lite_topic)
    assert name.startswith(queue_prefix(PARENT))
    assert (parent_of(name), lite_topic_of(name)) == (PARENT, lite_topic)
    assert shown_name(name) == f"%LMQ%${PARENT}${lite_topic}"


@pytest.mark.parametrize("name", [b"%LMQ%agents", b"%LMQ%agents%2F%2B", b"%LMQ%agents%2F%23", b"agents\x000", b"\x01x"])
def test_other_queues_are_no_lite_topics(name: bytes) -> None:
    assert parent_of(name) is None


@pytest.mark.parametrize("lite_topic", ["", "a+b", "#", "a\x00b", "x" * 256])
def test_what_is_no_topic_is_no_lite_topic(lite_topic: str) -> None:
    assert problem_of(PARENT, lite_topic) is not None
