"""Groups and their offsets: what is in the log, and what one turn writes of it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.groups.groups import (
    WALK_ENTRIES,
    GroupConfig,
    GroupOffsets,
    Groups,
    changed_attributes,
    dead_letter_topic,
    retry_topic,
)
from broker.store.errors import StoreFull
from broker.store.state import state_kinds
from broker.topics.topics import Topics
from remoting.protocol.errors import Refused


def test_a_new_group_gets_its_retry_topic(bench) -> None:
    topics = Topics(bench.store, topics_max=10)
    groups = Groups(bench.store, topics)
    assert groups.ensure("readers") is groups.ensure("readers")
    assert topics.get(retry_topic("readers")).read_queue_count == 1
    assert dead_letter_topic("readers") == "%DLQ%readers"
    groups.put(GroupConfig(group_name="readers", retry_max_times=3))
    store = bench.reopen()
    assert Groups(store, Topics(store, topics_max=10)).get("readers").retry_max_times == 3


def test_an_invalid_name_is_refused(bench) -> None:
    with pytest.raises(Refused, match="not valid"):
        Groups(bench.store, Topics(bench.store, topics_max=10)).ensure("no spaces")


def test_a_full_disk_does_not_stop_reading(bench) -> None:
    groups = Groups(bench.store, Topics(bench.store, topics_max=10))
    bench.store.disk._set_full()
    with pytest.raises(StoreFull):
        groups.ensure("readers")
    assert groups.ensure_if_room("readers") == GroupConfig(group_name="readers")
    assert groups.get("readers") is None
    bench.store.disk.full = False
    assert groups.ensure_if_room("readers") is groups.get("readers") is not None


async def test_commit_query_reset_and_restart(bench) -> None:
    offsets = GroupOffsets(bench.store)
    assert offsets.get("g", "t", 0) is None
    end = offsets.commit([("g", "t", 0, 5), ("g", "t", 1, 6), ("g2", "t", 0, 7)])
    offset, position = offsets.get("g", "t", 0)
    assert offset == 5
    assert position <= end
    offsets.commit([("g", "t", 0, 2)])
    again = GroupOffsets(bench.reopen())
    assert again.get("g", "t", 0)[0] == 2
    assert again.of_group("g") == {("t", 0): 2, ("t", 1): 6}
    assert await again.by_group() == {"g": {("t", 0): 2, ("t", 1): 6}, "g2": {("t", 0): 7}}


COMMITS = st.tuples(
    st.sampled_from(["g", "g2", "t"]), st.sampled_from(["t", "t2", "g"]), st.integers(0, 11), st.integers(0, 2**63 - 1)
)


@given(steps=st.lists(st.one_of(st.lists(COMMITS, min_size=1, max_size=9), st.sampled_from(["g", "g2"])), max_size=25))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_offsets_against_a_model(bench, steps) -> None:
    """Commits and forgotten groups in any order: each group, each topic and all of them are those of a plain dict."""
    offsets = GroupOffsets(bench.store)
    for group in offsets.groups():
        offsets.forget(group)
    model: dict[str, dict[tuple[str, int], int]] = {}
    for step in steps:
        if isinstance(step, str):
            offsets.forget(step)
            model.pop(step, None)
            continue
        offsets.commit(step)
        for group, topic, index, offset in step:
            model.setdefault(group, {})[topic, index] = offset
    assert offsets.groups() == sorted(model)
    assert all(offsets.of_group(group) == model.get(group, {}) for group in ("g", "g2", "t", "nobody"))
    assert asyncio.run(offsets.by_group()) == model
    of_topic = {group: {key: at for key, at in queues.items() if key[0] == "t"} for group, queues in model.items()}
    assert asyncio.run(offsets.by_group("t")) == {group: queues for group, queues in of_topic.items() if queues}


async def test_a_walk_over_all_offsets_leaves_the_loop_its_turns(bench) -> None:
    """Commits are served meanwhile; what was there before and is not changed is found once."""
    offsets = GroupOffsets(bench.store)
    count = 5 * WALK_ENTRIES
    offsets.commit((f"g{number % 3}", "t", number, number) for number in range(count))
    walk = asyncio.create_task(offsets.by_group("t"))
    turns = 0
    while not walk.done():
        await asyncio.sleep(0)
        offsets.commit([("meanwhile", f"t{turns}", 0, 1)])
        turns += 1
    assert turns >= 3, "each turn reads less than two times `WALK_ENTRIES`"
    found = await walk
    assert {at for queues in found.values() for at in queues.values()} == set(range(count))


async def test_one_record_for_all_and_the_last_wins(running) -> None:
    gather, store = running.broker.groups.commits, running.store
    records = []
    append_state = store.append_state
    store.append_state = lambda changes: records.append(len(changes)) or append_state(changes)
    done = asyncio.get_running_loop().create_future()
    gather.add("g", "t", 0, 1)
    gather.add("g", "t", 1, 2)
    gather.add("g", "t", 0, 3, done.set_result)
    assert store.state.count(state_kinds.GROUP_OFFSET) == 0
    assert await done is None
    assert records == [2]
    assert running.broker.groups.offsets.of_group("g") == {("t", 0): 3, ("t", 1): 2}


async def test_flush_writes_at_once_and_only_once(running) -> None:
    gather = running.broker.groups.commits
    gather.add("g", "t", 0, 5)
    gather.flush()
    assert running.broker.groups.offsets.get("g", "t", 0)[0] == 5
    end = running.store.end_position
    await asyncio.sleep(0)
    assert running.store.end_position == end


async def test_commits_without_an_answer_wait_for_others_and_change_something(running, monkeypatch) -> None:
    """A pull's commit is written after a while, by the next query or with an answered one; an equal one never."""
    gather, offsets, store = running.broker.groups.commits, running.broker.groups.offsets, running.store
    gather.add("g", "t", 0, 5)
    await asyncio.sleep(0)
    assert offsets.get("g", "t", 0) is None
    done = asyncio.get_running_loop().create_future()
    gather.add("g", "t", 1, 6, done.set_result)
    assert await done is None
    assert offsets.of_group("g") == {("t", 0): 5, ("t", 1): 6}
    end = store.end_position
    gather.add("g", "t", 0, 5)
    gather.flush()
    assert store.end_position == end, "nothing has changed"
    written = asyncio.Event()
    append_state = store.append_state
    monkeypatch.setattr(store, "append_state", lambda changes: written.set() or append_state(changes))
    gather.add("g", "t", 0, 7)
    await asyncio.wait_for(written.wait(), 10)
    assert offsets.get("g", "t", 0)[0] == 7


async def test_commits_that_have_gathered_are_written_at_the_end(running) -> None:
    running.broker.groups.commits.add("g", "t", 0, 5)
    running.broker.groups.stop()
    await running.restart()
    assert running.broker.groups.offsets.get("g", "t", 0)[0] == 5


@pytest.mark.parametrize(
    ("kept", "changes", "expected"),
    [
        ({}, {"+lite.bind.topic": "agents"}, {"lite.bind.topic": "agents"}),
        ({"a": "1"}, {"b": "2"}, {"a": "1", "b": "2"}),
        ({"lite.sub.wildcard": "", "a": "1"}, {"-lite.sub.wildcard": ""}, {"a": "1"}),
        ({}, {"+lite.sub.client.quota": "-1"}, {"lite.sub.client.quota": "-1"}),
    ],
)
def test_attributes_that_are_not_named_are_kept(
    kept: dict[str, str], changes: dict[str, str], expected: dict[str, str]
) -> None:
    assert changed_attributes(kept, changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"+lite.sub.model": "Both"}, {"+lite.sub.client.quota": "many"}, {"+lite.sub.client.quota": "9" * 12},
        {"+lite.bind.topic": "a b"}, {"+lite.sub.reset.offset.exclusive": "yes"},
    ],
)  # fmt: skip
def test_a_value_of_an_attribute_outside_its_rule_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(Refused):
        changed_attributes({}, changes)
