"""Check-points against a table that does the same without blocks, pages, schedule and log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.pop.check_points import CheckPoints, find_check_point, without
from broker.store.state.check_point_table import BLOCK, CheckPointTable
from broker.store.state.state_kinds import StateChange

GROUPS, QUEUES, OFFSETS = ("a", "ab"), (1, 0x10000), 7 * BLOCK


class Blocks:
    """Check-points over a table of small pages, with every change carried out at once."""

    def __init__(self) -> None:
        self.state = CheckPointTable(page_blocks=4)
        self.table = CheckPoints(self.state)

    def write(self, changes: list[StateChange]) -> None:
        for change in changes:
            if change.value is None:
                self.state.discard(change.key)
            else:
                self.state.put(change.key, (change.value, 0))

    def reopened(self) -> CheckPoints:
        reopened = CheckPointTable()
        for key, entry in self.state.freeze().items():
            reopened.put(key, entry)
        return CheckPoints(reopened)


places = st.tuples(st.sampled_from(GROUPS), st.sampled_from(QUEUES))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("give"), places, st.sets(st.integers(0, OFFSETS - 1), min_size=1, max_size=9), st.integers(0, 50)
        ),
        st.tuples(st.just("release"), places, st.integers(0, 2**30), st.integers(1, 9)),
        st.tuples(st.just("passes"), st.integers(1, 40), st.integers(1, 20), st.booleans()),
    ),
    max_size=40,
)


class Model:
    """The table under test beside one of single messages."""

    def __init__(self) -> None:
        self.blocks, self.now = Blocks(), 1_000
        self.owned: dict[tuple[str, int, int], tuple[int, int]] = {}

    def give(self, place: tuple[str, int], offsets: set[int], invisible: int) -> None:
        self.blocks.write(self.blocks.table.give(*place, sorted(offsets), (self.now, invisible)))
        self.owned.update({(*place, offset): (self.now, invisible) for offset in offsets})

    def release(self, place: tuple[str, int], first: int, count: int) -> None:
        there = [key[2] for key in self.owned if key[:2] == place]
        wanted = [there[(first + at) % len(there)] for at in range(min(count, len(there)))]
        self.blocks.write(self.blocks.table.release(*place, wanted))
        for offset in wanted:
            del self.owned[*place, offset]

    def passes(self, later: int, count: int, revived: bool) -> None:
        self.now += later
        table = self.blocks.table
        late = {key for key, (pop, invisible) in self.owned.items() if pop + invisible <= self.now}
        found = table.take_due(self.now, count)
        taken = {(due.group, due.queue_id, offset) for due in found for offset in due.offsets}
        assert sum(len(due.offsets) for due in found) == len(taken), "each once"
        assert taken <= late
        assert len(taken) >= min(count, len(late))
        for due in found:
            assert due.pop_ms == min(self.owned[due.group, due.queue_id, offset][0] for offset in due.offsets)
            if revived:
                self.blocks.write(table.release(due.group, due.queue_id, due.offsets))
            else:
                table.postpone(due, self.now)
        for key in taken if revived else ():
            del self.owned[key]

    def check(self, table: CheckPoints) -> None:
        assert len(table) == len(self.owned)
        for place in ((group, queue) for group in GROUPS for queue in QUEUES):
            mine = {key[2]: owned for key, owned in self.owned.items() if key[:2] == place}
            assert table.in_flight(*place) == len(mine)
            found = {offset: table.find(*place, offset) for offset in range(OFFSETS)}
            assert {offset: owned for offset, owned in found.items() if owned} == mine
        every = {(due.group, due.queue_id, offset) for due in table.take_due(2**50, 2**50) for offset in due.offsets}
        assert every == set(self.owned)


@given(steps)
def test_it_is_what_a_table_of_messages_would_be(steps) -> None:
    model = Model()
    for name, *values in steps:
        getattr(model, name)(*values)
    model.check(model.blocks.reopened())
    model.check(model.blocks.table)


def test_a_block_is_its_check_points_side_by_side() -> None:
    value = entry(31, 2**50, 2**32 - 1) + entry(0, 5, 6)
    assert [find_check_point(value, at) for at in (31, 0, 1)] == [0, 13, -1]
    assert find_check_point(b"", 0) == -1
    assert without(value, (0, 7)) == entry(31, 2**50, 2**32 - 1)
    assert without(b"", (0,)) == b""
    points = Blocks()
    points.write(points.table.give("g", 7, (31, 64, 32), (2**50, 2**32 - 1)))
    owner = b"g\x00\x00\x00\x00\x07"
    assert dict(points.state.items()) == {
        owner + (0).to_bytes(8): (entry(31, 2**50, 2**32 - 1), 0),
        owner + (1).to_bytes(8): (entry(0, 2**50, 2**32 - 1), 0),
        owner + (2).to_bytes(8): (entry(0, 2**50, 2**32 - 1), 0),
    }


def entry(at: int, pop_ms: int, invisible_ms: int) -> bytes:
    return bytes([at]) + pop_ms.to_bytes(8, "little") + invisible_ms.to_bytes(4, "little")
