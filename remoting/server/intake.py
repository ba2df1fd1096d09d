"""Limits of unfinished frames at a server: bytes, time, and least speed.

    peer without proof   64 KB of its own; more only under the name of a known key, within the shares of its address and
                         of all such peers together; closed at any of them
    proved peer          reserves its frame before it is read on; while the budget is spent it waits, unread, in order
    each of them         must end within a deadline, and bring so many bytes a second, checked every few seconds

A peer is proved by its first request with a valid signature, or from the beginning where no key is required.
Invariants: reserved bytes of proved peers never exceed `read_bytes_max`, unless one frame alone does; those of the
others never exceed `unproven_bytes_max` by more than one piece; what waits holds no reservation, so whoever holds one
can finish. Pure: time is given. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

CONNECTION, ADDRESS, TOTAL, BUDGET, DEADLINE, SLOW, REFUSALS = REASONS = (
    "unproven_connection", "unproven_address", "unproven_total", "budget", "deadline", "slow", "refusals",
)  # fmt: skip
"""Why connections are closed, as the metrics name it."""
WAITING_MAX = 64
"""Proved peers that wait for room in the budget; the connection of one more is closed."""
WINDOW_S = 5.0
"""How long the bytes of a frame are counted before its speed is judged."""
UNPROVEN_DEADLINE_S = 10.0
"""Longest time for one frame of a peer without proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits on unfinished frames of one server, in bytes, ms and bytes per second."""

    read_bytes_max: int = 268_435_456
    unproven_bytes_max: int = 67_108_864
    unproven_address_bytes_max: int = 33_554_432
    unproven_connection_bytes_max: int = 65_536
    frame_deadline_ms: int = 60_000
    frame_bytes_per_s_min: int = 16_384
    unproven_idle_ms: int = 120_000
    """Of connections between their frames; see `strangers`."""


class CountedReader(Protocol):
    """A connection whose frames are counted here."""

    @property
    def proved(self) -> bool:
        """Whether its requests carry a proof, or need none."""
        ...

    @property
    def idle(self) -> bool:
        """Whether this side does not read from it, so that its time must not run."""
        ...

    def host(self) -> str:
        """Its address without the port."""
        ...

    def names_key(self) -> bool:
        """Whether the header of the unfinished frame is there and names a key that is known."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        ...

    def resume_reading(self) -> None:
        """Read from it again, after it was paused."""
        ...


@dataclass(slots=True)
class _Frame:
    """One that has begun."""

    proved: bool
    host: str
    begun_s: float
    judged_s: float
    judged_bytes: int = 0
    """When its speed was judged last, and what was there then."""
    size: int = 0
    held: int = 0
    charge: int = 0
    waits: bool = False


class Intake:
    """The account of one server."""

    def __init__(self, limits: IntakeLimits | None = None) -> None:
        self.limits = limits or IntakeLimits()
        self.refused: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.reserved_bytes = 0
        """Of proved peers."""
        self.unproven_bytes = 0
        self._frames: dict[CountedReader, _Frame] = {}
        self._waiting: dict[CountedReader, _Frame] = {}
        self._hosts: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Peers that wait for room."""
        return len(self._waiting)

    def progress(self, reader: CountedReader, held: int, size: int, now_s: float) -> str:
        """So much of a frame of `size` bytes is there; why the connection must be closed, empty when it may go on."""
        frame = self._frames.get(reader)
        if frame is None:
            frame = self._frames[reader] = _Frame(reader.proved, reader.host(), now_s, now_s)
        frame.held, frame.size = held, size
        reason = self._admit(reader, frame) if frame.proved else self._ration(reader, frame)
        if reason:
            self.refused[reason] += 1
        return reason

    def finished(self, reader: CountedReader, now_s: float) -> None:
        """The frame is complete, or the connection ended: its reservation is free for waiting frames."""
        frame = self._frames.pop(reader, None)
        if frame is None:
            return
        self._waiting.pop(reader, None)
        self._charge(frame, 0)
        for waiting_reader, waiting in list(self._waiting.items()):
            if not self._has_room(waiting):
                break
            del self._waiting[waiting_reader]
            waiting.waits = False
            waiting.begun_s = waiting.judged_s = now_s
            self._charge(waiting, waiting.size)
            waiting_reader.resume_reading()

    def overdue(self, now_s: float) -> Iterator[tuple[CountedReader, str]]:
        """Yield and count the connections whose frame takes too long or arrives too slowly."""
        for reader, frame in list(self._frames.items()):
            if reader.idle:
                frame.begun_s = frame.judged_s = now_s
                continue
            reason = self._judge(frame, now_s)
            if reason:
                self.refused[reason] += 1
                yield reader, reason

    def _judge(self, frame: _Frame, now_s: float) -> str:
        """Whether a frame takes too long or arrived too slowly since the last check."""
        limits = self.limits
        if now_s - frame.begun_s > (limits.frame_deadline_ms / 1_000 if frame.proved else UNPROVEN_DEADLINE_S):
            return DEADLINE
        passed_s = now_s - frame.judged_s
        if passed_s < WINDOW_S:
            return ""
        if frame.held - frame.judged_bytes < passed_s * limits.frame_bytes_per_s_min:
            return SLOW
        frame.judged_s, frame.judged_bytes = now_s, frame.held
        return ""

    def _admit(self, reader: CountedReader, frame: _Frame) -> str:
        """A proved peer's frame: reserve all of it, or wait."""
        if frame.waits or frame.charge == frame.size:
            return ""
        if self._has_room(frame):
            self._charge(frame, frame.size)
            return ""
        if len(self._waiting) >= WAITING_MAX:
            return BUDGET
        frame.waits = True
        self._waiting[reader] = frame
        reader.pause_reading()
        return ""

    def _has_room(self, frame: _Frame) -> bool:
        others = self.reserved_bytes - frame.charge
        return others == 0 or others + frame.size <= self.limits.read_bytes_max

    def _ration(self, reader: CountedReader, frame: _Frame) -> str:
        """A frame of a peer without proof."""
        limits = self.limits
        if frame.held > limits.unproven_connection_bytes_max and not reader.names_key():
            return CONNECTION
        self._charge(frame, frame.held)
        if self._hosts[frame.host] > limits.unproven_address_bytes_max:
            return ADDRESS
        return TOTAL if self.unproven_bytes > limits.unproven_bytes_max else ""

    def _charge(self, frame: _Frame, charge: int) -> None:
        change, frame.charge = charge - frame.charge, charge
        if frame.proved:
            self.reserved_bytes += change
            return
        self.unproven_bytes += change
        held = self._hosts.get(frame.host, 0) + change
        if held:
            self._hosts[frame.host] = held
        else:
            self._hosts.pop(frame.host, None)
