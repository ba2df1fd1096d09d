"""What the streams of replication need of where they run: time, timers, chance, a log, and something that takes bytes.

In the product that is the event loop, a `LogStore` and a socket; in `tests/sim/cluster` a simulated process, disk and
network. Invariant: the streams reach the world through these alone. Loop rule: one thread calls a stream and all that
is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.store.append.raw_part import RawPart


@dataclass(frozen=True, slots=True)
class StreamHost:
    """The time and the timers of a process, and who logs for it."""

    now_ms: Callable[[], int]
    """Milliseconds of a clock that never goes back."""
    later: Callable[[float, Callable[[], object]], object]
    """Calls a function after so many seconds."""
    soon: Callable[[Callable[[], object]], object]
    """Calls a function when the present turn of the process ends, never at once."""
    nonce: Callable[[], bytes]
    """Bytes that nobody can predict, `NONCE_BYTES` of them."""
    chance: Callable[[], float]
    """A random number from 0 up to 1."""
    log: Any


class LogPositions(Protocol):
    """What of a log is kept, who wants to know, and how much may be confirmed."""

    @property
    def kept(self) -> int:
        """Everything below it is as durable as configured."""
        ...

    def on_written(self, listener: Callable[[int], None]) -> None:
        """Report each new end of what is written."""
        ...

    def on_kept(self, listener: Callable[[int], None]) -> None:
        """Report each new end of what is as durable as configured."""
        ...

    def limit_confirm(self, limit: int | None) -> None:
        """Confirm nothing beyond; None: what is kept is confirmed."""
        ...


class CopiedLog(Protocol):
    """The log as bytes and epochs."""

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, its first position), ascending."""
        ...

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """Return the part at a position, None at the end. Raises LocalMisuse when it has expired."""
        ...

    def examine(self, position: int) -> None:
        """Search what stands from a position on for damage, in the background."""
        ...


class WrittenLog(CopiedLog, Protocol):
    """A replica's log, which is written as its master's is."""

    @property
    def sound_end(self) -> int:
        """Where its first damage begins."""
        ...

    def append_raw(self, part: RawPart) -> int:
        """Append a part of the master's log. Raises StoreError, RemoteViolation for what does not fit."""
        ...

    def truncate(self, position: int) -> None:
        """Cut the log at a position, durably. Raises OSError."""
        ...

    def reset(self, position: int) -> None:
        """Drop all and begin at a position, durably. Raises OSError."""
        ...


class ServedLog(Protocol):
    """A log that is open, as `LogStore` is one."""

    @property
    def begin_position(self) -> int:
        """Where what retention has left begins."""
        ...

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        ...

    @property
    def confirm_position(self) -> int:
        """Everything below it is visible."""
        ...

    @property
    def positions(self) -> LogPositions:
        """What of it is kept, and what may be confirmed."""
        ...

    @property
    def replica(self) -> CopiedLog:
        """Its bytes and epochs, as they are sent to a replica."""
        ...


class StreamWire(Protocol):
    """One connection: what it is given leaves it in order, or the connection ends."""

    def send(self, head: bytes, data: bytes | memoryview = b"") -> None:
        """Send bytes; `data` is not copied. Nothing happens once the connection has ended."""
        ...

    def close(self) -> None:
        """End it when what was sent has left; its stream is told of the end later."""
        ...

    def abort(self) -> None:
        """End it at once; its stream is told of the end later."""
        ...


class FollowingLog(Protocol):
    """A replica's log that is open, as `LogStore` is one."""

    @property
    def begin_position(self) -> int:
        """Where what retention has left begins."""
        ...

    @property
    def end_position(self) -> int:
        """Where the next part goes."""
        ...

    @property
    def confirm_position(self) -> int:
        """Everything below it is visible."""
        ...

    @property
    def quarantined(self) -> Sequence[object]:
        """Its damaged ranges."""
        ...

    @property
    def positions(self) -> LogPositions:
        """What of it is kept, and what may be confirmed."""
        ...

    @property
    def replica(self) -> WrittenLog:
        """Its bytes and epochs, as they are taken over from a master."""
        ...
