"""The model log as the shipped streams see a store: `ServedLog` of `broker.replication.host`, for one role.

Planted bugs of the disk's bookkeeping are here; those of the disk itself are in `disk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remoting.protocol.errors import LocalMisuse
from tests.sim.cluster.disk import ModelLog

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

Listener = Callable[[int], None]
SEGMENT_BYTES = 2**31
"""The model has one file."""


@dataclass(frozen=True, slots=True)
class Part:
    """Whole records of one epoch."""

    position: int
    epoch: int
    data: memoryview
    segment_base: int = 0
    segment_size: int = SEGMENT_BYTES


class OpenedLog:
    """The log of a broker, open for a master of an epoch or, with epoch 0, for a replica."""

    def __init__(self, broker: Broker, epoch: int = 0) -> None:
        self._broker, self._epoch = broker, epoch
        self._written: list[Listener] = []
        self._kept: list[Listener] = []
        self.positions = self.replica = self
        broker.opened = self

    @property
    def log(self) -> ModelLog:
        """What is on the disk and in the page cache."""
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

    def raw(self, position: int, bytes_max: int) -> Part | None:
        """The part at a position."""
        if position < self.log.begin:
            raise LocalMisuse(f"{position} has expired")
        if position >= self.log.end:
            return None
        epoch, data = self.log.raw(position, bytes_max, self._epoch)
        return Part(position, epoch, memoryview(data))

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
