"""The account of consumer state: what it calls broken, and what it must not."""

from __future__ import annotations

from tests.support.consumer_state import ConsumerState, Fate


def rules(state: ConsumerState) -> list[str]:
    return [each.rule for each in state.broken]


def test_a_message_is_owed_until_the_group_has_acknowledged_it_or_buried_it() -> None:
    state = ConsumerState()
    state.join("g", ["t"])
    for name in "abcd":
        state.expect(name, "t")
        state.settle(name, Fate.MUST)
    state.expect("unknown", "t")
    state.given("g", "a", 0)
    state.acknowledging("g", "a")
    state.acknowledged("g", "a")
    state.acknowledging("g", "b")
    state.not_acknowledged("g", "b")
    state.buried("g", "c", 0)
    assert [each.detail for each in state.owed()] == [
        "b of t was given to g 0 times and never again",
        "d of t was given to g 0 times and never again",
    ]
    assert state.broken == []
    state.account()
    assert rules(state) == ["nobody's loss"] * 2


def test_what_retention_took_is_owed_to_nobody() -> None:
    state = ConsumerState()
    state.join("g", ["t"])
    for name, position in (("old", 100), ("new", 500)):
        state.expect(name, "t")
        state.settle(name, Fate.MUST, position)
    assert [each.detail.split()[0] for each in state.owed(200)] == ["new"]


def test_an_acknowledged_message_comes_again_only_where_nobody_was_told_that_it_counts() -> None:
    state = ConsumerState()
    state.join("exact", ["t"])
    state.join("loose", ["t"], is_exact=False)
    state.expect("a", "t")
    for group in ("exact", "loose"):
        state.given(group, "a", 0)
        state.acknowledging(group, "a")
        state.given(group, "a", 0)
    assert state.broken == []
    before = state.asks()
    state.acknowledged("exact", "a")
    state.given("exact", "a", 0, before)
    assert state.broken == [], "that answer was on its way"
    state.given("exact", "a", 0, state.asks())
    assert rules(state) == ["done is done"]


def test_nothing_called_off_early_or_unsent_may_be_seen() -> None:
    state = ConsumerState(early_ms=10)
    state.expect("rolled back", "t", Fate.NEVER)
    state.expect("timer", "t", not_before_ms=1_000)
    state.seen("timer", 990, "t")
    assert state.broken == []
    state.seen("timer", 989, "t")
    state.seen("rolled back", 0, "t")
    state.seen("never sent", 0, "t")
    assert rules(state) == ["not before its time", "nothing forbidden", "nothing forbidden"]
    state.settle("timer", Fate.NEVER)
    assert len(state.broken) == 4, "it was recalled after it was there"


def test_a_topic_has_each_message_once() -> None:
    state = ConsumerState()
    for name in "ab":
        state.expect(name, "t", Fate.MUST)
    state.in_topic("t", ["a", "b"], 0)
    assert state.broken == []
    assert state.owed() == []
    state.in_topic("t", ["a", "b", "a"], 0)
    assert rules(state) == ["once"]


def test_a_queue_in_order_has_no_gaps_and_may_repeat() -> None:
    state = ConsumerState()
    state.join("g", ["t"])
    for offset in (0, 1, 0, 1, 2):
        state.in_order("g", "q", offset, "m")
    assert state.broken == []
    state.in_order("g", "q", 4, "m")
    assert rules(state) == ["in order"]


def test_a_retained_value_is_at_least_the_last_one_acknowledged_before_the_question() -> None:
    state = ConsumerState()
    state.read_retained("t", None, state.retained_floor("t"))
    first = state.retaining("t", "1")
    state.retained("t", first)
    state.retaining("t", "2")
    for value in ("1", "2"):
        state.read_retained("t", value, state.retained_floor("t"))
    assert state.broken == []
    cleared = state.retaining("t", None)
    state.retained("t", cleared)
    state.read_retained("t", None, state.retained_floor("t"))
    assert state.broken == []
    state.read_retained("t", "2", state.retained_floor("t"))
    assert rules(state) == ["not stale"]


def test_one_that_is_told_that_it_has_no_message_speaks_for_nobody_else() -> None:
    """Another consumer of the group has acknowledged it meanwhile, and died with its broker before it was told."""
    state = ConsumerState()
    state.join("g", ["t"])
    state.expect("a", "t")
    state.settle("a", Fate.MUST)
    for _ in range(2):
        state.acknowledging("g", "a")
    state.not_acknowledged("g", "a")
    assert state.owed() == []
    state.not_acknowledged("g", "a")
    assert len(state.owed()) == 1
