"""How long a shared subscription lives, and what of it survives a restart."""

from __future__ import annotations

import pytest

from broker.shared import groups as shared_groups
from broker.shared.groups import SharedGroups
from broker.store.errors import StoreFull
from tests.support.images import placed

NAME = "$share/g/plant/#"


def publish(store, queue_id: int, count: int) -> None:
    store.append(*([placed((queue_id,))] * count))


def test_a_new_group_begins_with_the_next_message_and_ends_with_its_last_session(bench) -> None:
    """History is not shared; acknowledgements do not outlive the group."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    publish(bench.store, queue, 3)
    group = groups.join(NAME, "a", queue)
    assert (group.offsets.low, group.offsets.next) == (3, 3)
    assert groups.join(NAME, "b", queue) is group
    assert groups.join(NAME, "b", queue) is group
    assert groups.holders(NAME) == 2
    assert list(groups.of_queue(queue)) == [group]
    released = []
    groups.on_release(lambda name, client_id: released.append((name, client_id, groups.get(name) is group)))
    groups.release(NAME, "a")
    assert groups.get(NAME) is group
    groups.release(NAME, "b")
    assert released == [(NAME, "a", True), (NAME, "b", True)]
    assert groups.get(NAME) is None
    assert list(groups.of_queue(queue)) == []
    assert len(SharedGroups(bench.reopen())) == 0


def test_groups_of_one_filter_are_separate(bench) -> None:
    """Two names over one queue: each has its own offset."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    one, two = groups.join("$share/a/x", "c", queue), groups.join("$share/b/x", "c", queue)
    assert one is not two
    assert len(list(groups.of_queue(queue))) == 2
    groups.release("$share/a/x", "c")
    assert list(groups.of_queue(queue)) == [two]
    assert [name for name, _ in groups.items()] == ["$share/b/x"]


def test_acknowledgements_survive_once_saved(bench) -> None:
    """Low-water mark and what is acknowledged above it are in the log; claims of what was in flight are awaited."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    group = groups.join(NAME, "a", queue)
    publish(bench.store, queue, 5)
    member = group.join("a")
    group.grant(member, 5)
    for offset in range(4):
        group.hand_out(offset, 1)
    group.settle(member, [0, 2], [])
    assert groups.save()
    assert groups.save()
    again = SharedGroups(bench.reopen(), grace_ms=100, now_ms=1_000)
    loaded = again.join(NAME, "a", queue)
    assert (loaded.offsets.low, loaded.offsets.next, loaded.offsets.ranges()) == (1, 4, [(2, 3)])
    assert loaded.offsets.awaiting
    assert again.expire(2_000) == 0, "a session is subscribed to it"


def test_a_group_that_is_not_rejoined_ends_after_the_grace(bench) -> None:
    """Clean sessions are unknown after a restart until their proxies open them again."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    groups.join(NAME, "a", queue)
    again = SharedGroups(bench.reopen(), grace_ms=100, now_ms=1_000)
    assert again.expire(1_099) == 0
    assert again.expire(1_100) == 1
    assert again.get(NAME) is None
    assert len(SharedGroups(bench.reopen())) == 0


def test_a_group_whose_queue_was_replaced_starts_over(bench) -> None:
    """A wildcard queue that expired has a new id; offsets of the old one mean nothing in it."""
    groups = SharedGroups(bench.store)
    old = bench.store.queues.open(b"%LMQ%q")
    publish(bench.store, old, 2)
    groups.join(NAME, "a", old)
    again = SharedGroups(bench.reopen())
    new = bench.store.queues.open(b"%LMQ%r")
    group = again.join(NAME, "a", new)
    assert (group.queue_id, group.offsets.low) == (new, 0)
    assert list(again.of_queue(old)) == []


def test_a_full_disk_does_not_stop_a_group(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is written later; until then it would be repeated after a crash, and that is counted."""
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    group = groups.join(NAME, "a", queue)
    group.offsets.dirty = True
    append_state = bench.store.append_state

    def full(changes):
        raise StoreFull("full")

    monkeypatch.setattr(bench.store, "append_state", full)
    assert not groups.save()
    assert groups.not_saved == 1
    assert group.offsets.dirty
    monkeypatch.setattr(bench.store, "append_state", append_state)
    assert groups.save()
    assert not group.offsets.dirty


def test_a_record_holds_a_bounded_number_of_ranges(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the higher ones are left out: given again after a restart, never lost."""
    monkeypatch.setattr(shared_groups, "RANGES_MAX", 2)
    groups = SharedGroups(bench.store)
    queue = bench.store.queues.open(b"%LMQ%q")
    group = groups.join(NAME, "a", queue)
    member = group.join("a")
    group.grant(member, 9)
    for offset in range(9):
        group.hand_out(offset, 1)
    group.settle(member, [1, 3, 5, 7], [])
    groups.save()
    loaded = SharedGroups(bench.reopen()).join(NAME, "a", queue)
    assert loaded.offsets.ranges() == [(1, 2), (3, 4)]
    loaded.offsets.call_off()
    assert loaded.offsets.upcoming(9, 9) == [0, 2, 4, 5, 6, 7, 8]
