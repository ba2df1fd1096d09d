"""Queue names and ids."""

from __future__ import annotations

from broker.store.state.queue_registry import QueueRegistry, carried_value, queue_value
from broker.store.state.state_tables import StateTables


def make():
    tables, seen = StateTables(), []
    registry = QueueRegistry(tables)
    registry.on_queue = lambda *queue: seen.append(queue)
    return tables, registry, seen


def test_create_find_delete() -> None:
    """Ids count up; a deleted one leaves a hole for ever."""
    tables, registry, seen = make()
    for change in registry.creation([b"a", b"b"]):
        tables.apply(change, 1)
    assert (registry.find(b"b"), registry.name(0), registry.count, registry.next_id) == (1, b"a", 2, 2)
    for change in registry.deletion(1):
        tables.apply(change, 2)
    assert (registry.find(b"b"), registry.name(1), registry.count, registry.next_id) == (None, None, 1, 2)
    assert registry.creation([b"b"])[0].value == queue_value(2, 0)
    assert seen == [(0, 0), (1, 0)]
    assert registry.name(77) is None


def test_floor_of_ids_survives_a_rebuild() -> None:
    """After the deleted queue's own record has expired the empty name still keeps its id from coming back."""
    tables, registry, _ = make()
    for change in registry.creation([b"a"]):
        tables.apply(change, 1)
    changes = registry.deletion(0)
    fresh, again, _ = make()
    fresh.apply(changes[1], 5)
    assert again.next_id == 1


def test_carried_value_has_the_present_next_offset() -> None:
    """What retention says again lets an empty queue go on where it stopped."""
    assert carried_value(b"q", queue_value(3, 0), lambda queue: 100 + queue) == queue_value(3, 103)
    assert carried_value(b"", queue_value(9, 0), lambda queue: 0) == queue_value(9, 0)
