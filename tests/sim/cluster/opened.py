"""The model log as the shipped streams see a store, for one role: `ServedLog` or `FollowingLog` of their `host`.

Planted bugs of the disk's bookkeeping are here; those of the disk itself are in `disk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.store.append.raw_part import RawPart
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LocalMisuse
from tests.sim.cluster.disk import ModelLog
from tests.sim.cluster.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

Listener = Callable[[int], None]
SEGMENT_BYTES = 2**31
"""The model has one file."""
START_QUEUE, START_IDENT = 99, 500_000_000
EPOCH_IDENTS = 1_000_000
"""Queue of the records with which elected masters begin, and what is added to their epochs."""


class OpenedLog:
    """The log of a broker, open for a master of an epoch or, with epoch 0, for a replica."""

    def __init__(self, broker: Broker, epoch: int = 0) -> None:
        self._broker, self._epoch = broker, epoch
        self._written: list[Listener] = []
        self._kept: list[Listener] = []
        self._is_closed = False
        self.positions = self.replica = self
        if epoch:
            broker.log.begin_epoch(epoch)

    def close(self) -> None:
        """Nothing may use it any more."""
        self._is_closed = True

    @property
    def log(self) -> ModelLog:
        """What is on the disk and in the page cache."""
        if self._is_closed:
            raise Violation("a closed log is not used", self._broker.name)
        return self._broker.log

    @property
    def begin_position(self) -> int:
        """Its first position."""
        return self.log.begin

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        return self.log.end

    @property
    def confirm_position(self) -> int:
        """Everything below it is visible."""
        return self.log.confirm

    @property
    def kept(self) -> int:
        """Everything below it is as durable as configured."""
        return self.log.end if "counts-own-unflushed" in self._broker.flags and self._epoch else self.log.kept

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """Who wrote what."""
        return list(self.log.epochs)

    def on_written(self, listener: Listener) -> None:
        """Report each new end of what is written."""
        self._written.append(listener)

    def on_kept(self, listener: Listener) -> None:
        """Report each new end of what is kept."""
        self._kept.append(listener)

    def limit_confirm(self, limit: int | None) -> None:
        """Confirm nothing beyond."""
        self.log.limit = limit
        self.log.settle()
        self._broker.confirmed()

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """The part at a position."""
        if position < self.log.begin:
            raise LocalMisuse(f"{position} has expired")
        sound = self.sound_end - position
        if sound <= 0:
            return None
        epoch, data = self.log.raw(position, min(bytes_max, sound), self._epoch)
        return RawPart(position, 0, SEGMENT_BYTES, epoch, memoryview(data))

    def examine(self, position: int) -> None:
        """Do nothing: where its damage begins is known."""

    # -- a replica's -------------------------------------------------------------------------------------------------

    @property
    def quarantined(self) -> Sequence[object]:
        """Its damaged ranges: one, or none."""
        return () if self._broker.damage is None else (self._broker.damage,)

    @property
    def sound_end(self) -> int:
        """Where its damage begins."""
        end, damage = self.log.end, self._broker.damage
        return end if damage is None else damage

    def append_raw(self, part: RawPart) -> int:
        """Append a part of the master's log."""
        if self._epoch:
            raise Violation("a master's log is no copy", f"{self._broker.name} is open for epoch {self._epoch}")
        self.log.append_raw(part.position, part.epoch, part.position, bytes(part.data))
        if self.log.is_async or "ack-before-fsync" in self._broker.flags:
            for listener in self._kept:
                listener(self.log.end)
        self._broker.flush()
        return self.log.end

    def truncate(self, position: int) -> None:
        """Cut, durably."""
        self._cuts(f"a cut at {position}", position)
        self.log.truncate(position)
        self._broker.cluster.judge.was_cut(self._broker)

    def reset(self, position: int) -> None:
        """Start over, durably."""
        assert self._broker.following is not None
        self._cuts(f"a start at {position}", max(position, self.log.begin))
        self._broker.cut_away(0)  # damage ahead of the former log's begin may not come back with an earlier one
        self.log.reset(position, self._broker.following.master.log.floors)
        self._broker.cluster.judge.was_cut(self._broker)

    def _cuts(self, what: str, position: int) -> None:
        is_damaged = self._broker.damage is not None
        self._broker.cut_away(position)
        if position < self.log.confirm and not is_damaged:
            self._broker.cluster.judge.cut_below_confirm(self._broker, what)
        self._broker.world.tell(self._broker.name, f"{what}, the log ended at {self.log.end}")

    # -- a master's --------------------------------------------------------------------------------------------------

    def settle_damage(self) -> None:
        """Do nothing: its damage takes no state."""

    def append_state(self, _changes: Sequence[StateChange]) -> int:
        """A record that changes nothing: a message of a queue that nobody reads; its end."""
        self.log.append(START_QUEUE, START_IDENT + EPOCH_IDENTS * self._epoch + self.log.end, self._epoch)
        self.wrote()
        return self.log.end

    def wrote(self) -> None:
        """More is written: report it, and ask the disk for it."""
        for listener in self._written:
            listener(self.log.end)
        if self.log.is_async:
            self.flushed()
        self._broker.flush()

    def flushed(self) -> None:
        """More is kept: report it."""
        for listener in self._kept:
            listener(self.kept)
        self._broker.confirmed()
