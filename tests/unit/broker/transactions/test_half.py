"""The table of half messages against a naive one, and against what it writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.transactions import transactions as half_module
from broker.transactions.transactions import COMMITTED, COPIED, COPY_PREFIX, FLOOR_KEY, ROLLED_BACK, Half, HalfTable
from tests.support.plants import Plant, catches

CHANGES = "broker.transactions.transactions:HalfEnding.changes"


def table_of(written: dict[bytes, bytes]) -> HalfTable:
    """The state after a restart."""
    copies = {int(key.removeprefix(COPY_PREFIX)): int(to) for key, to in written.items() if key.startswith(COPY_PREFIX)}
    outcomes = {int(key): value for key, value in written.items() if key.isdigit()}
    return HalfTable(int(written.get(FLOOR_KEY, b"0")), outcomes, copies)


def write(
    written: dict[bytes, bytes], table: HalfTable, offset: int, outcome: bytes, copied_to: int | None = None
) -> None:
    """End one as the owner does: write what changes, then apply it."""
    ending = table.ending(offset, outcome, copied_to)
    for key, value in ending.changes(table.floor):
        if value is None:
            del written[key]
        else:
            written[key] = value
    table.ended(ending)


def see(table: HalfTable, count: int) -> None:
    for _ in range(count):
        table.see(Half(table.cursor, table.cursor * 100, "group", 0), due_ms=table.cursor)


@given(st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=80), st.integers(1, 5), st.integers(0, 4))
def test_any_order_of_ends_agrees_with_a_naive_table_and_with_a_restart(steps, dropped_max, kept) -> None:
    before = half_module.DROPPED_MAX, half_module.ENDED_KEPT
    half_module.DROPPED_MAX, half_module.ENDED_KEPT = dropped_max, kept
    try:
        table, written, ended = HalfTable(), {}, {}
        for step in steps:
            open_ = [offset for offset in range(table.cursor) if offset not in ended]
            if step is None or not open_:
                see(table, 1)
                continue
            offset = open_[step % len(open_)]
            ended[offset] = COMMITTED if step % 2 else ROLLED_BACK
            write(written, table, offset, ended[offset])
            again = table_of(written)
            see(again, table.cursor - again.cursor)
            for each in (table, again):
                assert [at for at in range(table.cursor) if each.pending(at)] == sorted(set(open_) - {offset})
                assert all(each.outcome(at) == ended[at] for at in ended if at >= each.floor)
                assert all(at in ended for at in range(each.floor))
    finally:
        half_module.DROPPED_MAX, half_module.ENDED_KEPT = before


def test_what_ended_last_is_kept_when_all_have_ended(monkeypatch) -> None:
    monkeypatch.setattr(half_module, "ENDED_KEPT", 2)
    table, written = HalfTable(), {}
    see(table, 10)
    for offset in (3, 7, 0, 1, 9, 2, 8, 5, 4, 6):
        write(written, table, offset, COMMITTED)
    assert written == {FLOOR_KEY: b"8", b"8": COMMITTED, b"9": COMMITTED}
    assert len(table) == 0


def test_due_ones_are_taken_in_order_and_once() -> None:
    table = HalfTable()
    see(table, 5)
    write({}, table, 1, COMMITTED)
    assert [half.offset for half in table.take_due(3, 2)] == [0, 2]
    assert [half.offset for half in table.take_due(3, 9)] == [3]
    first = table.pending(0)
    assert first is not None
    table.ask_again(first, 50)
    assert [half.offset for half in table.take_due(60, 9)] == [4, 0]


def test_unreadable_ones_are_skipped() -> None:
    table = HalfTable()
    see(table, 1)
    table.skip(4)
    see(table, 1)
    assert table.pending(4) is not None
    assert [table.pending(offset) for offset in (1, 2, 3)] == [None] * 3


def test_a_copy_is_found_by_every_offset_it_was_known_at_until_it_ends() -> None:
    table, written = HalfTable(), {}
    see(table, 2)
    for step in (0, 1):
        present = table.present(0)
        ending = table.ending(present, COPIED, 2 + step)
        written |= {key: value for key, value in ending.changes(table.floor) if value is not None}
        table.ended(ending)
        see(table, 1)
    assert [table.present(offset) for offset in (0, 2, 1)] == [3, 3, 1]
    assert written[COPY_PREFIX + b"0"] == written[COPY_PREFIX + b"2"] == b"3"
    ending = table.ending(3, COMMITTED)
    assert {key for key, value in ending.changes(table.floor) if value is None} >= {
        COPY_PREFIX + b"0",
        COPY_PREFIX + b"2",
    }
    table.ended(ending)
    assert [table.present(0), table.outcome(0), table.outcome(2)] == [0, COMMITTED, COMMITTED]


@catches(
    Plant(
        "the-copys-alone",
        CHANGES,
        'found += [(b"%d" % known, self.outcome) for known in self.known_as if known >= self.floor]',
        "pass",
    ),
    Plant(
        "the-copys-place-stays",
        CHANGES,
        'found += [(COPY_PREFIX + b"%d" % known, None) for known in self.known_as]',
        "pass",
    ),
    Plant("one-step-back", CHANGES, "for known in (self.offset, *self.known_as)]", "for known in (self.offset,)]"),
)
def test_how_a_copy_ended_is_known_after_a_restart_at_every_offset_it_had() -> None:
    """A producer that repeats its decision names the first one, and is told that it was taken."""
    table, written = HalfTable(), {}
    see(table, 2)
    write(written, table, 0, COPIED, copied_to=2)
    see(table, 1)
    write(written, table, 2, COPIED, copied_to=3)
    see(table, 1)
    again = table_of(written)
    assert [again.present(offset) for offset in (0, 2)] == [3, 3]
    write(written, table, 3, ROLLED_BACK)
    again = table_of(written)
    assert [again.outcome(again.present(offset)) for offset in (0, 2, 3)] == [ROLLED_BACK] * 3
    assert again.present(0) == 0
