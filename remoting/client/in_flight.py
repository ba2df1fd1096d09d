"""A window of frames in flight: items are packed into frames; each frame sent is answered, repeated or refused.

    add ──▶ gathering ──▶ closed ──▶ take ──▶ in flight ──▶ stored | refused
            full, or press       ▲                │
                                 └── repeat, lost ┘

Sans-IO: the sender calls `take` for what to send now, until that is None, and reports the outcome of each frame. A lost
connection ends no frame: `lost` puts all unanswered frames back, and they are taken again first.
Invariant: frames are taken in the order in which their items were added, and again in that order after `lost`; no frame
is taken while an older one waits to be repeated. With one frame in flight the receiver therefore gets the items in
order despite repetitions; with more, a frame repeated alone may be overtaken by those in flight with it. Every item
ends in exactly one frame that was stored or refused. Thread rule: plain values, one owner.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remoting.protocol.errors import LocalMisuse

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """When a frame is full, how many are in flight, and how often a frame is sent."""

    frame_items_max: int
    """Items of one frame."""
    frame_bytes_max: int
    """Bytes of one frame; a larger item is sent alone."""
    frames_in_flight_max: int = 1
    """Frames without an answer; 1 keeps the order of items even when a frame is repeated alone."""
    attempts_max: int = 5
    """How often a frame is sent before `may_repeat` is false."""

    def __post_init__(self) -> None:
        if min(self.frame_items_max, self.frame_bytes_max, self.frames_in_flight_max, self.attempts_max) < 1:
            raise LocalMisuse(f"limits of a window are at least 1: {self}")


@dataclass(slots=True, eq=False)
class FlightFrame(Generic[Item]):
    """Items that are sent together."""

    number: int
    """Frames of one window are numbered in their order."""
    items: list[Item] = field(default_factory=list)
    size: int = 0
    """Bytes, as the caller counts them."""
    attempts: int = 0
    """How often it was sent."""


class InFlight(Generic[Item]):
    """The frames of one sequence of items."""

    def __init__(self, limits: WindowLimits) -> None:
        self.frames_closed = 0
        """Number of frames closed to further items so far."""
        self._limits = limits
        self._items_max, self._bytes_max = limits.frame_items_max, limits.frame_bytes_max
        self._gathering: FlightFrame[Item] = FlightFrame(0)
        self._is_due = False
        self._closed: deque[FlightFrame[Item]] = deque()
        self._in_flight: deque[FlightFrame[Item]] = deque()

    @property
    def is_gathering(self) -> bool:
        """Whether items are waiting for more, without a call of `press`."""
        return bool(self._gathering.items) and not self._is_due

    @property
    def is_ready(self) -> bool:
        """Whether `take` has a frame."""
        has_room = len(self._in_flight) < self._limits.frames_in_flight_max
        return has_room and bool(self._closed or self._is_due)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waiting or in flight."""
        return not (self._gathering.items or self._closed or self._in_flight)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were added and are neither stored nor refused."""
        return sum(frame.size for frame in (*self._in_flight, *self._closed, self._gathering))

    def waiting(self) -> Iterator[Item]:
        """Items that were added and are neither stored nor refused, in their order."""
        for frame in sorted((*self._in_flight, *self._closed, self._gathering), key=_number):
            yield from frame.items

    def add(self, item: Item, size: int) -> bool:
        """Add an item of `size` bytes; return whether a frame was closed, being full or without room for the item."""
        frame = self._gathering
        items = frame.items
        is_closed = False
        if frame.size + size > self._bytes_max and items:
            frame = self._close()
            items = frame.items
            is_closed = True
        items.append(item)
        frame.size += size
        if len(items) >= self._items_max or frame.size >= self._bytes_max:
            self._close()
            return True
        return is_closed

    def press(self) -> None:
        """Let the open frame be taken as soon as the window has room, with the items added until then."""
        self._is_due = bool(self._gathering.items)

    def take(self) -> FlightFrame[Item] | None:
        """Return the next frame to send, which is then in flight; None when nothing may be sent now."""
        if len(self._in_flight) >= self._limits.frames_in_flight_max:
            return None
        if not self._closed and self._is_due:
            self._close()
        if not self._closed:
            return None
        frame = self._closed.popleft()
        frame.attempts += 1
        self._in_flight.append(frame)
        return frame

    def stored(self, frame: FlightFrame[Item]) -> None:
        """Note that the frame was answered and is done."""
        self._in_flight.remove(frame)

    def refused(self, frame: FlightFrame[Item]) -> None:
        """Remove a frame that is not sent again; the caller decides about its items."""
        self._in_flight.remove(frame)

    def may_repeat(self, frame: FlightFrame[Item]) -> bool:
        """Whether a frame in flight may be sent once more."""
        return frame.attempts < self._limits.attempts_max

    def repeat(self, frame: FlightFrame[Item]) -> None:
        """Send this frame again, before any that was not taken yet."""
        self._in_flight.remove(frame)
        insort(self._closed, frame, key=_number)

    def lost(self) -> None:
        """Note a lost connection: every frame in flight is sent again, in order."""
        self._closed = deque(sorted((*self._in_flight, *self._closed), key=_number))
        self._in_flight.clear()

    def _close(self) -> FlightFrame[Item]:
        self.frames_closed += 1
        self._closed.append(self._gathering)
        self._gathering = FlightFrame(self.frames_closed)
        self._is_due = False
        return self._gathering


def _number(frame: FlightFrame[Item]) -> int:
    return frame.number
