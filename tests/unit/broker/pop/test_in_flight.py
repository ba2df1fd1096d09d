"""What is in flight, in order or not, over a real store."""

from __future__ import annotations

from broker.pop.in_flight import MessagesInFlight
from broker.store.state import state_kinds


def test_what_is_written_is_there_after_a_restart(bench) -> None:
    points = MessagesInFlight(bench.store)
    points.write(points.table.give("g", 7, range(40), (1_000, 500)))
    points.write(points.release("g", 7, range(1, 40)))
    assert [due.offsets for due in MessagesInFlight(bench.reopen()).table.take_due(1_500, 9)] == [(0,)]
    points = MessagesInFlight(bench.store)
    assert len(points) == 1
    points.write(points.release("g", 7, (0,)))
    assert bench.store.state.count(state_kinds.CHECK_POINT) == 0


def test_what_is_in_order_is_there_after_a_restart(bench) -> None:
    points = MessagesInFlight(bench.store)
    points.write(points.ordered.give("g", 7, b"a", (3, 5, 8), 9, (1_000, 500)))
    points.write(points.release("g", 7, (5,)))
    points.write(points.move("g", 7, 8, (1_100, 600)))
    points = MessagesInFlight(bench.reopen())
    assert (len(points), points.count("g", 7), points.count("g", 8)) == (2, 2, 0)
    assert points.find("g", 7, 3) == (1_000, 500)
    assert points.find("g", 7, 5) is None
    assert points.find("g", 7, 8) == (1_100, 600)
    assert points.ordered.take_due(1_699) == []
    assert points.ordered.take_due(1_700) == [("g", 7)]


def test_messages_of_both_kinds_end_together(bench) -> None:
    points = MessagesInFlight(bench.store)
    points.write(points.table.give("g", 7, (1,), (1_000, 500)) + points.ordered.give("g", 7, b"", (2, 3), 4, (1, 2)))
    points.write(points.release("g", 7, (1, 2)))
    assert (len(points), len(points.table), points.count("g", 7)) == (1, 0, 1)
    points.write(points.release("g", 7, (3,)))
    assert bench.store.state.count(state_kinds.ORDERED_BATCH) == 0
    assert points.ordered.batch("g", 7) is None
