"""Keep-alive: a ring that finds the overdue sessions at O(1) per slot however many there are.

    slot   0   1   2  ...  n-1        an item sits in the slot of its deadline as of its last visit
           .   x   xx      x          each step of time visits the slots it passed, nothing else

An item's deadline moves with every packet, but the item does not: activity costs nothing. When its slot comes up the
item's deadline is read again and the item put into that slot (at most one turn of the ring ahead). So each item costs
one visit per keep-alive period, not one per packet and not one per second.

Invariants: an item is in exactly one slot; it is reported once, at the first `expire` not earlier than its deadline and
at most one slot later. Pure: time is an argument. Loop rule: one owner.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

SLOT_MS = 100
"""Width of a slot: how much later than its deadline an item may be reported. The shortest keep-alive is 1 s, due after
1.5 s [MQTT-3.1.2-24]; a wider slot would let that grow to twice the interval."""

SLOTS = 512
"""Slots of the ring, 51 s: longer deadlines are visited once per turn."""


class Expiring(Protocol):
    """Something with a deadline that may move later, never earlier without a new `watch`."""

    def next_deadline_ms(self) -> int | None:
        """When it is due if nothing happens; None = never, and it needs no watching."""
        ...


T = TypeVar("T", bound=Expiring)


class ExpiryRing(Generic[T]):
    """Items by the slot of their deadline."""

    __slots__ = ("_next_slot", "_slot_of", "_slots")

    def __init__(self, now_ms: int) -> None:
        self._slots: list[set[T]] = [set() for _ in range(SLOTS)]
        self._slot_of: dict[T, int] = {}
        self._next_slot = now_ms // SLOT_MS
        """Number (not index) of the first slot not visited yet."""

    def __len__(self) -> int:
        return len(self._slot_of)

    def watch(self, item: T) -> None:
        """Put an item into the slot of its deadline; call again when the deadline has moved earlier. None removes
        it."""
        self.forget(item)
        deadline_ms = item.next_deadline_ms()
        if deadline_ms is None:
            return
        # a slot is visited when it is over, so that everything in it is due
        slot = min(max(deadline_ms // SLOT_MS, self._next_slot), self._next_slot + SLOTS - 1)
        self._slot_of[item] = slot % SLOTS
        self._slots[slot % SLOTS].add(item)

    def forget(self, item: T) -> None:
        """Remove an item; does nothing when it is not there."""
        index = self._slot_of.pop(item, None)
        if index is not None:
            self._slots[index].discard(item)

    def expire(self, now_ms: int) -> list[T]:
        """The items whose deadline has passed, removed from the ring."""
        due: list[T] = []
        current = now_ms // SLOT_MS
        visited = range(max(self._next_slot, current - SLOTS), current)
        self._next_slot = max(self._next_slot, current)
        for number in visited:
            index = number % SLOTS
            items, self._slots[index] = self._slots[index], set()
            for item in items:
                del self._slot_of[item]
                deadline_ms = item.next_deadline_ms()
                if deadline_ms is not None and deadline_ms <= now_ms:
                    due.append(item)
                else:
                    self.watch(item)
        return due
