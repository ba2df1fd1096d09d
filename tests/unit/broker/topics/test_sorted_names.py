"""Names in order, whatever happens while they are being sorted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from broker.topics.sorted_names import IDLE_MS, SortedNames

NAMES = st.sampled_from([b"a", b"a/b", b"b", b"ba", b"c"])


class Table:
    """A table of names that is walked through in steps of one name."""

    def __init__(self, names: list[bytes]) -> None:
        self.names = dict.fromkeys(names)
        self.walks = 0

    def steps(self) -> Iterator[list[bytes]]:
        self.walks += 1
        for name in list(self.names):
            yield [name]


def put(table: Table, names: SortedNames, name: bytes, *, exists: bool) -> None:
    if exists:
        table.names[name] = None
    else:
        table.names.pop(name, None)
    names.changed(name, exists=exists)


@given(st.lists(NAMES, unique=True), st.lists(st.tuples(NAMES, st.booleans(), st.booleans())))
def test_changes_at_any_time_are_in_the_result(at_first: list[bytes], changes: list[tuple[bytes, bool, bool]]) -> None:
    """Each change comes before, during or after the sorting, as the pauses between them fall."""

    async def run() -> None:
        table = Table(at_first)
        names = SortedNames(table.steps)
        readers = [asyncio.ensure_future(names.wanted(0)) for _ in range(2)]
        for name, exists, pause in changes:
            put(table, names, name, exists=exists)
            if pause:
                await asyncio.sleep(0)
        assert await readers[0] == sorted(table.names)
        assert await readers[1] is await readers[0]

    asyncio.run(run())


async def test_without_readers_the_names_are_dropped() -> None:
    table = Table([b"b", b"a"])
    names = SortedNames(table.steps)
    names.changed(b"a", exists=True)  # nobody looks
    assert await names.wanted(0) == [b"a", b"b"]
    names.maintain(IDLE_MS)
    assert await names.wanted(IDLE_MS) == [b"a", b"b"]
    assert table.walks == 1
    names.maintain(2 * IDLE_MS + 1)
    put(table, names, b"c", exists=True)
    assert await names.wanted(2 * IDLE_MS + 1) == [b"a", b"b", b"c"]
    assert table.walks == 2


async def test_names_that_are_being_sorted_are_not_dropped() -> None:
    table = Table([b"b", b"a"])
    names = SortedNames(table.steps)
    reading = asyncio.ensure_future(names.wanted(0))
    await asyncio.sleep(0)
    names.maintain(IDLE_MS + 1)
    assert await reading == [b"a", b"b"]


@given(st.lists(NAMES, unique=True), NAMES, st.integers(1, 3))
def test_the_first_page_does_not_wait_for_the_order(at_first: list[bytes], after: bytes, count: int) -> None:
    async def pages() -> None:
        table = Table(at_first)
        names = SortedNames(table.steps)
        wanted = [name for name in sorted(at_first) if name > after][:count]
        assert await names.following(after, count, 0) == wanted
        assert names.names is None
        await names.wanted(0)
        assert await names.following(after, count, 0) == wanted
        assert table.walks == 2

    asyncio.run(pages())
