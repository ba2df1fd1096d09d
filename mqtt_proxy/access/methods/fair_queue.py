"""A bounded queue whose places and turns are shared fairly: between origins, and within each between its lanes.

An origin is a peer address, a lane a user. Origins take turns, the lanes of an origin take turns, a lane is first in,
first out. When there is no place left, the longest loses its newest entry, so who fills the queue is turned away
himself and takes no place from others.

Invariant: at most `origin_max` entries of one origin and `total_max` in all. Pure; loop rule: that of its owner.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Origin(Generic[T]):
    """The lanes of one origin, the next one to be served first."""

    __slots__ = ("lanes", "size")

    def __init__(self) -> None:
        self.lanes: OrderedDict[str, deque[T]] = OrderedDict()
        self.size = 0

    def length(self, lane: str) -> int:
        return len(self.lanes.get(lane, ()))

    def longest(self) -> str:
        return max(self.lanes, key=self.length)

    def drop_newest(self, lane: str) -> T:
        entries = self.lanes[lane]
        dropped = entries.pop()
        self.size -= 1
        if not entries:
            del self.lanes[lane]
        return dropped

    def take(self) -> T:
        lane, entries = self.lanes.popitem(last=False)
        taken = entries.popleft()
        self.size -= 1
        if entries:
            self.lanes[lane] = entries
        return taken


class FairQueue(Generic[T]):
    """Entries waiting for their turn."""

    def __init__(self, *, total_max: int, origin_max: int) -> None:
        self._total_max = total_max
        self._origin_max = origin_max
        self._origins: OrderedDict[str, _Origin[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def crowded(self, origin: str) -> bool:
        """Whether somebody is turned away when this origin puts one more."""
        known = self._origins.get(origin)
        return self._size >= self._total_max or (known is not None and known.size >= self._origin_max)

    def put(self, origin: str, lane: str, entry: T) -> T | None:
        """Add an entry; the one that is turned away for it, which may be the entry itself."""
        if self.crowded(origin):
            dropped = self._make_room(origin, lane)
            if dropped is None:
                return entry
        else:
            dropped = None
        known = self._origins.setdefault(origin, _Origin())
        known.lanes.setdefault(lane, deque()).append(entry)
        known.size += 1
        self._size += 1
        return dropped

    def take(self) -> T:
        """The next entry in turn. IndexError when there is none."""
        if not self._origins:
            raise IndexError("the queue is empty")
        origin, known = self._origins.popitem(last=False)
        taken = known.take()
        self._size -= 1
        if known.size:
            self._origins[origin] = known
        return taken

    def sweep(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out every unwanted entry, wherever it stands."""
        swept: list[T] = []
        for origin, known in list(self._origins.items()):
            for lane, entries in list(known.lanes.items()):
                kept = self._sift(entries, unwanted, swept)
                known.size += len(kept) - len(entries)
                if kept:
                    known.lanes[lane] = kept
                else:
                    del known.lanes[lane]
            if not known.size:
                del self._origins[origin]
        self._size -= len(swept)
        return swept

    @staticmethod
    def _sift(entries: Iterable[T], unwanted: Callable[[T], bool], swept: list[T]) -> deque[T]:
        kept: deque[T] = deque()
        for entry in entries:
            (swept if unwanted(entry) else kept).append(entry)
        return kept

    def _make_room(self, origin: str, lane: str) -> T | None:
        """Drop for a newcomer the newest entry of whoever has most.

        None when the newcomer would then have as many himself: two that have the same must not drop each other in turn.
        """
        own = self._origins.get(origin)
        size = 0 if own is None else own.size
        largest = max(self._origins, key=lambda each: self._origins[each].size)
        if size >= self._origin_max or size + 1 >= self._origins[largest].size:
            largest = origin
        known = self._origins.get(largest)
        if known is None:
            return None
        longest = known.longest()
        if largest == origin and known.length(longest) <= known.length(lane) + 1:
            return None
        dropped = known.drop_newest(longest)
        self._size -= 1
        if not known.size:
            del self._origins[largest]
        return dropped
