"""Commits of one turn are one record, and a query in the same turn sees them."""

from __future__ import annotations

import asyncio

from broker.store.state import state_kinds


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
