"""Which master wrote which stretch of the log: a list of (epoch, start), and where two such lists part.

    epochs  1        2     5            entry i ends where entry i + 1 starts, the last one at the log's end
    log     |--------|-----|-----> end

Invariant: epochs and starts both rise strictly. An epoch that begins where the one before it began replaces it: no
byte of it is left, and keeping it would give the bytes that follow to the wrong master. Nothing behind the truncation
point was ever visible to clients. Pure: no file, no clock; one owner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse, RemoteViolation

EPOCH_MAX = 2**32 - 1
"""Records carry their epoch as u32."""
POSITION_MAX = 2**63 - 1

Entry = tuple[int, int]
"""(epoch, position of its first byte)."""


class Epochs:
    """The epochs of one log."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            if self._starts and start <= self._starts[-1]:
                raise LocalMisuse(f"epoch {epoch} starts at {start}, not behind epoch {self._epochs[-1]}")
            self.add(epoch, start)

    def __iter__(self) -> Iterator[Entry]:
        return zip(self._epochs, self._starts, strict=True)

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Epochs) and self._epochs == other._epochs and self._starts == other._starts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Epochs({list(self)})"

    @property
    def last(self) -> int:
        """The newest epoch, 0 when there is none yet."""
        return self._epochs[-1] if self._epochs else 0

    @property
    def last_start(self) -> int:
        """Where the newest epoch starts, 0 when there is none yet."""
        return self._starts[-1] if self._starts else 0

    def add(self, epoch: int, start: int) -> None:
        """Begin `epoch` at `start`; entries that start there or later give way. Raises LocalMisuse for an old epoch."""
        if not self.last < epoch <= EPOCH_MAX:
            raise LocalMisuse(f"epoch {epoch} is not newer than epoch {self.last}")
        if not 0 <= start <= POSITION_MAX:
            raise LocalMisuse(f"epoch {epoch} cannot start at {start}")
        self._cut(bisect_left(self._starts, start))
        self._epochs.append(epoch)
        self._starts.append(start)

    def truncate(self, position: int) -> None:
        """The log was cut to `position`: forget entries that start there or later."""
        self._cut(bisect_left(self._starts, position))

    def clear(self) -> None:
        """The log was dropped."""
        self._cut(0)

    def at(self, position: int) -> Entry | None:
        """Return the (epoch, start) a byte at `position` belongs to, None when it lies before the first entry."""
        index = bisect_right(self._starts, position) - 1
        return (self._epochs[index], self._starts[index]) if index >= 0 else None

    def end_of(self, epoch: int, log_end: int) -> int | None:
        """Return where `epoch` ends in a log that ends at `log_end`, None when it is not in the list."""
        index = bisect_left(self._epochs, epoch)
        if index == len(self._epochs) or self._epochs[index] != epoch:
            return None
        return self._starts[index + 1] if index + 1 < len(self._starts) else log_end

    def common_end(self, log_end: int, other: Epochs, other_end: int, begin: int) -> int | None:
        """Return up to where two logs agree, None when no epoch is the same in both from `begin` on.

        Two logs agree on an epoch as far as both have it: one master wrote it, in order, and its epoch is never used
        again. They agree on all before it too, because its start was taken over with everything below it. Starts that
        lie before `begin` need not be equal: a log that began in the middle of an epoch does not know its true start.
        """
        starts = dict(zip(other._epochs, other._starts, strict=True))
        for index in range(len(self._epochs) - 1, -1, -1):
            epoch, start = self._epochs[index], self._starts[index]
            theirs = starts.get(epoch)
            if theirs is not None and max(theirs, begin) == max(start, begin):
                mine = self._starts[index + 1] if index + 1 < len(self._starts) else log_end
                return min(mine, other.end_of(epoch, other_end) or 0)
        return None

    def _cut(self, index: int) -> None:
        del self._epochs[index:], self._starts[index:]


@dataclass(frozen=True, slots=True)
class Extent:
    """A log as its peer must know it: where it begins and ends, and which epoch wrote which range."""

    begin: int
    end: int
    epochs: Epochs


def truncation_point(mine: Extent, master: Extent) -> int | None:
    """Return where a replica must cut its log before it takes bytes from its master; None for a reset.

    A reset drops everything and continues at the master's begin: the lists have no epoch in common, or the stretch in
    common ends before the master's log (or the replica's) begins, so that no broker has the bytes between.
    """
    if not len(mine.epochs) and mine.begin == mine.end == master.begin:
        return mine.end
    common = mine.epochs.common_end(mine.end, master.epochs, master.end, max(mine.begin, master.begin))
    if common is None or common < master.begin or common < mine.begin:
        return None
    return common


def checked(entries: Sequence[Entry], end: int) -> Epochs:
    """Return the list a peer sent for a log that ends at `end`. Raises RemoteViolation when it cannot be one."""
    try:
        epochs = Epochs(entries)
    except LocalMisuse as error:
        raise RemoteViolation(f"epoch list: {error}") from error
    if epochs.last_start > end:
        raise RemoteViolation(f"epoch list: epoch {epochs.last} starts at {epochs.last_start}, above the end {end}")
    return epochs
