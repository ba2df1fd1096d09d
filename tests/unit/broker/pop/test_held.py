"""Changes that are seen before they are written."""

from __future__ import annotations

import pytest

from broker.pop.check_points import CheckPoints, queue_key
from broker.pop.held import HeldChanges
from broker.pop.in_flight import MessagesInFlight
from broker.store.errors import StoreFull
from broker.store.state.state_kinds import CHECK_POINT, GROUP_OFFSET, StateChange
from tests.unit.broker.conftest import BrokerBench

OWNED = (1_000, 500)


async def test_what_is_held_is_seen_and_in_the_log_only_when_it_is_written(running: BrokerBench) -> None:
    store = running.store
    held, end = HeldChanges(store), store.end_position
    points = CheckPoints(store.state.check_points, held)
    for first in (0, 30):
        held.keep(points.give("g", 7, range(first, first + 4), OWNED))
    held.keep([StateChange(GROUP_OFFSET, b"g", b"1"), StateChange(GROUP_OFFSET, b"g", b"2")])
    assert held.value(GROUP_OFFSET, b"g") == b"2"
    assert (points.in_flight("g", 7), held.growth(queue_key("g", 7)), len(points)) == (8, 8, 0)
    assert [points.find("g", 7, offset) for offset in (3, 4, 31, 33)] == [OWNED, None, OWNED, OWNED]
    assert store.end_position == end
    assert held.write() == store.end_position > end
    assert (points.in_flight("g", 7), held.growth(queue_key("g", 7)), len(points)) == (8, 0, 8)
    assert store.state.count(CHECK_POINT) == 2
    assert held.value(GROUP_OFFSET, b"g") == b"2"


async def test_what_is_dropped_was_never_there(running: BrokerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = MessagesInFlight(running.store)
    in_flight.write(in_flight.ordered.give("g", 1, b"a", [5], 6, OWNED))

    def full(_changes: object) -> int:
        raise StoreFull("no room")

    for again in (False, True):
        in_flight.keep(in_flight.ordered.give("g", 2, b"a", [0, 1], 2, OWNED))
        in_flight.keep(in_flight.table.give("g", 3, [0], OWNED))
        assert (len(in_flight.ordered), in_flight.count("g", 2), in_flight.count("g", 3)) == (3, 2, 1)
        with monkeypatch.context() as patch:
            patch.setattr(running.store, "append_state", full)
            with pytest.raises(StoreFull):
                in_flight.held.write()
        if again:
            assert in_flight.held.write() == running.store.end_position
        in_flight.held.drop()
        assert (len(in_flight), in_flight.count("g", 1)) == (4 if again else 1, 1)
    assert in_flight.ordered.take_due(sum(OWNED)) == [("g", 1), ("g", 2)]


async def test_nothing_held_is_no_record(running: BrokerBench) -> None:
    end = running.store.end_position
    assert (HeldChanges(running.store).write(), running.store.end_position) == (0, end)
