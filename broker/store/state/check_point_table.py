"""Check-points of POP in columns: which messages of a queue each consumer group has in flight, and until when.

An entry has the check-points of a block, which is `BLOCK` consecutive offsets:

    key    owner: group (UTF-8) | 0x00 | queue id u32 BE      | block u64 BE
    value  check-points x { offset within the block u8 | pop time (ms) u64 | invisible time (ms) u32 } LE

In memory an owner has pages of up to PAGE_BLOCKS neighbouring blocks, each a few arrays; pages that empty are joined
with their neighbours, so that a check-point costs few bytes however many of its neighbours are gone:

    page   blocks u64[n] | position of the record i64[n] | check-points u8[n] | values back to back

A page knows the earliest end of ownership in it, or an earlier time, and the schedule has the pages by that time.

Freezing shares the arrays of the pages with the snapshot; a later change copies those of the page that it touches.
Invariants: pages are not empty, their blocks ascend. The schedule has a page no later than the first end of ownership
in it, but for check-points that `take_due` has returned and blocks that are postponed. A value that is shorter than
the one it replaces has no check-point that was not there. Pure (time comes in). Loop thread; what `freeze` returns may
be used elsewhere.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from broker.store.state.name_table import Entry

BLOCK = 32
PAGE_BLOCKS = 64
CHECK_POINT_BYTES = 13
KEY_TAIL = struct.Struct(">Q")
"""The block at the end of a key; what comes before is the owner."""

_TIMES = [struct.Struct("<" + "xQI" * count) for count in range(BLOCK + 1)]
_CHECK_POINT = struct.Struct("<BQI")
_NEVER = 2**63
_STALE_MIN = 64
Columns = tuple["array[int]", "array[int]", bytearray, bytearray]
"""Blocks, positions, numbers of check-points, values of a page."""
Late = tuple[bytes, list[int], int]
"""Key of a block, offsets within it, ascending, of which the ownership is over, and the first of their pop times."""


class _Page:
    """Neighbouring blocks of one owner."""

    __slots__ = ("blocks", "counts", "owner", "planned_ms", "positions", "serial", "shared", "values")

    def __init__(self, owner: bytes, serial: int) -> None:
        self.owner = owner
        self.serial = serial
        self.planned_ms = _NEVER
        self.shared = False
        self.blocks = array("Q")
        self.positions = array("q")
        self.counts = bytearray()
        self.values = bytearray()

    def __len__(self) -> int:
        return len(self.blocks)

    def place(self, block: int) -> tuple[int, bool]:
        """Row of a block, and whether it is there."""
        row = bisect_left(self.blocks, block)
        return row, row < len(self.blocks) and self.blocks[row] == block

    def begin(self, row: int) -> int:
        """Where the value of a row begins."""
        if row == len(self.counts):
            return len(self.values)
        return CHECK_POINT_BYTES * sum(self.counts[:row])

    def value(self, row: int) -> bytes:
        """The check-points of a row."""
        begin = self.begin(row)
        return bytes(self.values[begin : begin + CHECK_POINT_BYTES * self.counts[row]])

    def columns(self) -> Columns:
        """The arrays of the page."""
        return self.blocks, self.positions, self.counts, self.values

    def own(self) -> None:
        """Copy what a snapshot shares, before a change."""
        if self.shared:
            self.blocks, self.positions = self.blocks[:], self.positions[:]
            self.counts, self.values = self.counts[:], self.values[:]
            self.shared = False

    def cut(self, row: int, right: _Page) -> None:
        """Move the rows from this one on into an empty page."""
        begin = self.begin(row)
        right.blocks, right.positions = self.blocks[row:], self.positions[row:]
        right.counts, right.values = self.counts[row:], self.values[begin:]
        del self.blocks[row:], self.positions[row:], self.counts[row:], self.values[begin:]

    def join(self, right: _Page) -> None:
        """Append the rows of the page behind."""
        self.blocks += right.blocks
        self.positions += right.positions
        self.counts += right.counts
        self.values += right.values

    def late(self, now_ms: int, count: int, postponed: Mapping[bytes, int]) -> tuple[list[Late], int]:
        """Blocks with check-points whose time is over, until they have `count`, and when to look at all others.

        `postponed`: blocks that are not looked at before a time.
        """
        found: list[Late] = []
        first_end = _NEVER
        rows = _CHECK_POINT.iter_unpack(self.values)
        for block, number in zip(self.blocks, self.counts, strict=True):
            ends = [(pop + invisible, at, pop) for at, pop, invisible in islice(rows, number)]
            not_before_ms = postponed.get(self.owner + KEY_TAIL.pack(block), 0) if postponed else 0
            if not_before_ms > now_ms:
                first_end = min(first_end, not_before_ms)
                continue
            over = [each for each in ends if each[0] <= now_ms] if count > 0 else []
            if over:
                offsets = sorted(at for _, at, _ in over)
                found.append((self.owner + KEY_TAIL.pack(block), offsets, min(pop for _, _, pop in over)))
                count -= len(offsets)
                ends = [each for each in ends if each[0] > now_ms]
            first_end = min([first_end, *(end for end, _, _ in ends)])
        return found, first_end


class _Owner:
    """What one group has of one queue: pages, and from which block on each of them is."""

    __slots__ = ("count", "firsts", "pages")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.pages: list[_Page] = []
        self.count = 0
        """Check-points."""

    def at(self, block: int) -> int:
        """The number of the page where a block is, or belongs."""
        return max(0, bisect_right(self.firsts, block) - 1)


@dataclass(slots=True)
class FrozenCheckPoints:
    """The table as it was."""

    count: int
    """Blocks."""
    pages: list[tuple[bytes, Columns]]
    """Owner and arrays."""

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position))."""
        for owner, columns in self.pages:
            yield from _items(owner, columns)


class CheckPointTable:
    """Blocks of check-points with the positions of their records, by key; and which of them are due."""

    def __init__(self, page_blocks: int = PAGE_BLOCKS) -> None:
        """`page_blocks`: most blocks of a page."""
        self._page_blocks = page_blocks
        self._owners: dict[bytes, _Owner] = {}
        self._schedule: list[tuple[int, int, _Page]] = []
        self._serials = itertools.count()
        self._page_count = 0
        self._postponed: dict[bytes, int] = {}
        """Key of a block that is there -> not looked at before."""
        self.count = 0
        """Blocks."""
        self.total = 0
        """Check-points."""

    def get(self, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        owner = self._owners.get(key[: -KEY_TAIL.size])
        if owner is None:
            return None
        block = int.from_bytes(key[-KEY_TAIL.size :])
        page = owner.pages[owner.at(block)]
        row, there = page.place(block)
        return (page.value(row), page.positions[row]) if there else None

    def in_flight(self, owner: bytes) -> int:
        """How many check-points an owner has."""
        found = self._owners.get(owner)
        return 0 if found is None else found.count

    def put(self, key: bytes, entry: Entry) -> None:
        """Let a block have exactly the check-points of the value, instead of those it had."""
        value, position = entry
        name, block = key[: -KEY_TAIL.size], int.from_bytes(key[-KEY_TAIL.size :])
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner()
            self._add_page(owner, 0, block, _Page(name, next(self._serials)))
        page, row, there = self._room(owner, block)
        page.own()
        begin = page.begin(row)
        number = len(value) // CHECK_POINT_BYTES
        if there:
            former = page.counts[row]
            end = begin + CHECK_POINT_BYTES * former
            added = _added(page.values, begin, end, value)
            page.values[begin:end] = value
            page.counts[row] = number
            page.positions[row] = position
        else:
            former, added = 0, value
            page.blocks.insert(row, block)
            page.positions.insert(row, position)
            page.counts.insert(row, number)
            page.values[begin:begin] = value
            self.count += 1
        self._grow(owner, number - former)
        if added:
            self._postponed.pop(key, None)
            self._plan(page, first_end(added))

    def discard(self, key: bytes) -> None:
        """Forget a block, if it is there."""
        name, block = key[: -KEY_TAIL.size], int.from_bytes(key[-KEY_TAIL.size :])
        owner = self._owners.get(name)
        if owner is None:
            return
        at = owner.at(block)
        page = owner.pages[at]
        row, there = page.place(block)
        if not there:
            return
        page.own()
        self._postponed.pop(key, None)
        begin, number = page.begin(row), page.counts[row]
        del page.values[begin : begin + CHECK_POINT_BYTES * number]
        del page.blocks[row], page.positions[row], page.counts[row]
        self.count -= 1
        self._grow(owner, -number)
        if not page:
            self._drop_page(owner, at)
            if not owner.pages:
                del self._owners[name]
        elif len(page) <= self._page_blocks // 4:
            self._join(owner, at)

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)); nothing may change meanwhile."""
        for name, owner in self._owners.items():
            for page in owner.pages:
                yield from _items(name, page.columns())

    def older(self, position: int) -> Iterator[tuple[int, list[tuple[bytes, Entry]]]]:
        """Yield (blocks examined, those of them set below `position`), page by page; the table may change meanwhile."""
        for name in list(self._owners):
            block = 0
            while (owner := self._owners.get(name)) is not None:
                at = owner.at(block)
                if owner.pages[at].blocks[-1] < block:
                    at += 1
                    if at == len(owner.pages):
                        break
                page = owner.pages[at]
                row = page.place(block)[0]
                block = page.blocks[-1] + 1
                found = []
                if min(page.positions) < position:
                    found = [each for each in _items(name, page.columns()) if each[1][1] < position]
                yield len(page) - row, found

    def freeze(self) -> FrozenCheckPoints:
        """Return all entries as they are now."""
        pages = []
        for name, owner in self._owners.items():
            for page in owner.pages:
                page.shared = True
                pages.append((name, page.columns()))
        return FrozenCheckPoints(self.count, pages)

    def take_due(self, now_ms: int, count: int) -> list[Late]:
        """Blocks with check-points whose ownership is over, about `count` check-points at most.

        Each check-point is removed by the caller, or looked at again by `postpone`.
        """
        found: list[Late] = []
        while self._schedule and self._schedule[0][0] <= now_ms and count > 0:
            at_ms, _serial, page = heapq.heappop(self._schedule)
            if page.planned_ms != at_ms:
                continue
            page.planned_ms = _NEVER
            late, next_ms = page.late(now_ms, count, self._postponed)
            self._plan(page, next_ms)
            found += late
            count -= sum(len(offsets) for _key, offsets, _pop in late)
        if self._postponed:
            for key, _offsets, _pop in found:
                self._postponed.pop(key, None)
        return found

    def postpone(self, key: bytes, at_ms: int) -> None:
        """Look at a block, if it is there, again at this time; others of its page are not held up."""
        owner, block = self._owners.get(key[: -KEY_TAIL.size]), int.from_bytes(key[-KEY_TAIL.size :])
        if owner is None:
            return
        page = owner.pages[owner.at(block)]
        if page.place(block)[1]:
            self._postponed[key] = at_ms
            self._plan(page, at_ms)

    def _room(self, owner: _Owner, block: int) -> tuple[_Page, int, bool]:
        """The page of a block with room for it, its row there, and whether it is there already."""
        at = owner.at(block)
        page = owner.pages[at]
        row, there = page.place(block)
        if there or len(page) < self._page_blocks:
            if row == 0:
                owner.firsts[at] = block
            return page, row, there
        right = _Page(page.owner, next(self._serials))
        if row < self._page_blocks or at + 1 < len(owner.pages):
            page.own()
            page.cut(self._page_blocks // 2, right)
            self._add_page(owner, at + 1, right.blocks[0], right)
            self._plan(right, page.planned_ms)
            return self._room(owner, block)
        self._add_page(owner, at + 1, block, right)  # blocks mostly come in order: then pages are full
        return right, 0, False

    def _join(self, owner: _Owner, at: int) -> None:
        """Join a page that has few blocks with a neighbour if both have room in one."""
        for left in (at - 1, at):
            if 0 <= left < len(owner.pages) - 1:
                page, right = owner.pages[left : left + 2]
                if len(page) + len(right) <= self._page_blocks * 3 // 4:
                    page.own()
                    page.join(right)
                    self._plan(page, right.planned_ms)
                    self._drop_page(owner, left + 1)
                    return

    def _add_page(self, owner: _Owner, at: int, first: int, page: _Page) -> None:
        owner.firsts.insert(at, first)
        owner.pages.insert(at, page)
        self._page_count += 1

    def _drop_page(self, owner: _Owner, at: int) -> None:
        owner.pages.pop(at).planned_ms = _NEVER
        del owner.firsts[at]
        self._page_count -= 1

    def _grow(self, owner: _Owner, number: int) -> None:
        owner.count += number
        self.total += number

    def _plan(self, page: _Page, at_ms: int) -> None:
        """Have the page looked at no later than this."""
        if at_ms >= page.planned_ms:
            return
        page.planned_ms = at_ms
        if len(self._schedule) >= 2 * self._page_count + _STALE_MIN:
            self._schedule = [each for each in self._schedule if each[2].planned_ms == each[0]]
            heapq.heapify(self._schedule)
        heapq.heappush(self._schedule, (at_ms, page.serial, page))


def first_end(value: bytes) -> int:
    """When the first ownership in a block that is not empty is over, ms."""
    times: tuple[int, ...] = _TIMES[len(value) // CHECK_POINT_BYTES].unpack(value)
    ends: Iterator[int] = map(operator.add, times[::2], times[1::2])
    return min(ends)


def _added(values: bytearray, begin: int, end: int, value: bytes) -> bytes:
    """What a value may have that the former one, at these places, had not."""
    if len(value) < end - begin:
        return b""
    return value[end - begin :] if values.startswith(value[: end - begin], begin) else value


def _items(owner: bytes, columns: Columns) -> Iterator[tuple[bytes, Entry]]:
    blocks, positions, counts, values = columns
    end = 0
    for block, position, count in zip(blocks, positions, counts, strict=True):
        begin, end = end, end + CHECK_POINT_BYTES * count
        yield owner + KEY_TAIL.pack(block), (bytes(values[begin:end]), position)
