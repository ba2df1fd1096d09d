"""The compact table of queue names against plain dicts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from broker.store.state.name_table import PAGE, PAGE_BITS, PAGE_MASK, VALUE, NameTable, names_with_prefix
from remoting.native.vectors import cumsum

NAMES = st.sampled_from([b"n%d" % n for n in range(60)] + [b"x" * 300])


def loaded(table: NameTable) -> NameTable:
    """The same table through a snapshot."""
    frozen = table.frozen().columns()
    names = b"".join(frozen.names())
    frozen.starts = cumsum(frozen.lengths) - frozen.lengths
    frozen.blob = bytearray(names)
    made = NameTable()
    made.load(frozen)
    return made


class AgainstDicts(RuleBasedStateMachine):
    """Any order of changes leaves the content of two dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NameTable()
        self.meant: dict[bytes, tuple[int, int, int]] = {}
        self.next_id = self.position = 0

    @rule(name=NAMES, offset=st.integers(0, 2**60))
    def say(self, name: bytes, offset: int) -> None:
        """A new queue, or the same one again."""
        self.position += 8
        queue = self.meant[name][0] if name in self.meant else self.next_id
        self.next_id = max(self.next_id, queue + 1)
        self.meant[name] = (queue, offset, self.position)
        assert self.table.put(name, VALUE.pack(queue, offset), self.position) == (queue, offset)

    @rule(name=NAMES)
    def delete(self, name: bytes) -> None:
        """Also of one that does not exist."""
        self.meant.pop(name, None)
        self.table.discard(name)

    @rule()
    def through_a_snapshot(self) -> None:
        """Ids that were deleted last are restored only by the floor."""
        self.table.put(b"", VALUE.pack(self.next_id, 0), self.position)
        self.table = loaded(self.table)

    @invariant()
    def same(self) -> None:
        """All lookups agree."""
        table = self.table
        assert table.next_id == self.next_id
        assert table.count == len(self.meant)
        for name, (queue, offset, position) in self.meant.items():
            assert (table.find(name), table.name(queue)) == (queue, name)
            assert table.get(name) == (VALUE.pack(queue, offset), position)
            assert table.next_offsets()[queue] == offset
        assert {name for name, _ in table.items() if name} == set(self.meant)
        assert table.find(b"nobody") is None


def test_against_dicts() -> None:
    """Hundreds of changes in any order."""
    run_state_machine_as_test(AgainstDicts, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))


def test_growth_and_compaction() -> None:
    """Thousands of names, most of them deleted again: the blob shrinks, a frozen view keeps what it saw."""
    table = NameTable()
    for n in range(5000):
        table.put(b"queue/%d" % n + bytes(40), VALUE.pack(n, n), n)
    frozen = table.frozen()
    for n in range(0, 5000, 5):
        for gone in range(n, n + 4):
            table.discard(b"queue/%d" % gone + bytes(40))
    assert table.count == 1000
    assert len(table._blob) < 5000 * 50 // 2
    assert all(table.find(b"queue/%d" % n + bytes(40)) == n for n in range(4, 5000, 5))
    assert b"".join(frozen.columns().names()) == b"".join(b"queue/%d" % n + bytes(40) for n in range(5000))
    assert loaded(table).find(b"queue/4999" + bytes(40)) == 4999
    assert [queue for part in table.older_than(10) for queue in part] == [4, 9]


@given(st.lists(st.integers(0, 2000), unique=True, min_size=1, max_size=200))
def test_slots_that_wrap_around(codes: list[int]) -> None:
    """Names whose home is the last slot continue at the beginning, at growth and one by one."""
    table = NameTable()
    for queue, code in enumerate(codes):
        table.put(b"%d" % code, VALUE.pack(queue, 0), 0)
    for queue in range(len(codes)):
        table._pages[queue >> PAGE_BITS].hashes[queue & PAGE_MASK] = 0xFFFF_FFFF
    table._rehash()
    assert sorted(entry - 1 for entry in table._slots if entry) == list(range(len(codes)))
    assert table._slots[table._mask] > 0
    assert not table._slots[len(codes)]


def test_names_by_prefix() -> None:
    """Only live ones; shorter names are no error."""
    table = NameTable()
    for queue, name in enumerate((b"ab", b"abc", b"a", b"b", b"abd")):
        table.put(name, VALUE.pack(queue, 0), 0)
    table.discard(b"abc")
    assert names_with_prefix(table, b"ab") == [b"ab", b"abd"]
    assert names_with_prefix(NameTable(), b"a") == []


def test_an_id_that_changes_its_name() -> None:
    """The last record counts."""
    table = NameTable()
    table.put(b"a", VALUE.pack(0, 1), 1)
    table.put(b"b", VALUE.pack(0, 2), 2)
    assert (table.find(b"a"), table.find(b"b"), table.count) == (None, 0, 1)
    table.put(b"b", VALUE.pack(3, 2), 3)
    assert (table.find(b"b"), table.name(0), table.next_id, len(table)) == (3, None, 4, 1)


def test_deleted_queues_leave_nothing() -> None:
    """After a hundred times as many queues as there are at a time, no more pages and bytes are kept than for these."""
    table, at_once = NameTable(), 1_000
    for queue in range(100 * at_once):
        table.put(b"q%d" % queue, VALUE.pack(queue, 5), queue)
        if queue >= at_once:
            table.discard(b"q%d" % (queue - at_once))
    first = 99 * at_once
    assert (table.next_id, table.count) == (100 * at_once, at_once)
    assert len(table._pages) <= at_once // PAGE + 2
    assert (len(table._slots), len(table._blob)) <= (4 * at_once, 200_000)
    assert list(table.parts(2 * PAGE)) == list(range(first // (2 * PAGE) * 2 * PAGE, table.next_id, 2 * PAGE))
    assert (table.exists(5), table.name(5), table.find(b"q5")) == (False, None, None)
    assert table.ids(0, table.next_id).tolist() == list(range(first, table.next_id))
    assert [queue for part in table.older_than(first + 3) for queue in part] == [first, first + 1, first + 2]
    for queue in range(first, table.next_id):
        table.discard(b"q%d" % queue)
    assert not table._pages
    assert list(table.parts(PAGE)) == table.ids(0, table.next_id).tolist() == table.ids_with_prefix(b"q") == []
    table.put(b"new", VALUE.pack(table.next_id, 0), 1)
    assert loaded(table).find(b"new") == 100 * at_once
