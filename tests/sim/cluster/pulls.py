"""Pulls from any broker of a simulated group: the shipped reader and outcomes of pulls, over the model log.

A master answers while it may, every other broker as a replica; the confirm position that bounds both is the one that
the shipped replication told this broker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.reading.pull_outcome import PullOutcome, pull_outcome
from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import ReadResult
from broker.store.index.run import Entries
from remoting.native.vectors import column, full
from tests.sim.cluster.disk import HEAD, ModelLog, Record

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Pull:
    """What a reader asks for, and by which name the judge knows it."""

    reader: str
    queue: int
    offset: int
    count_max: int


class OneFile:
    """The model log as the one file of a log."""

    path = Path("model")
    base = 0

    def __init__(self, log: ModelLog) -> None:
        self.end = self.size = log.end
        self.view = memoryview(bytes(log.cache))


class Shelf:
    """The model log with an index of its queues, and the confirm position: all that the shipped reader reads from."""

    directory = Path()

    def __init__(self, log: ModelLog, queue: int) -> None:
        self._log, self._file = log, OneFile(log)
        self._records = [record for record in log.records if record[1] == queue]
        self._begin = self._records[0][2] if self._records else log.floors.get(queue, 0)

    @property
    def position(self) -> int:
        """The confirm position."""
        return self._log.confirm

    def segment_at(self, position: int) -> OneFile | None:
        """The file, for the positions in it."""
        return self._file if self._log.begin <= position < self._log.end else None

    def view(self, position: int, size: int) -> memoryview | None:
        """Bytes of the log."""
        return self._file.view[position : position + size]

    def min_offset(self, queue: int) -> int:
        """The first offset."""
        return self._begin

    def confirmed_end(self, queue: int) -> int:
        """The offset behind the last confirmed message."""
        return self._begin + bisect_left(self._records, (self.position,))

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Where messages stand."""
        found = self._records[offset - self._begin :][:count]
        sizes = [HEAD.unpack_from(self._file.view, record[0])[0] for record in found]
        return Entries(
            column([record[2] for record in found], "q"),
            column([record[0] for record in found], "q"),
            column(sizes, "I"),
            full(len(found), 0, "I"),
            offset + len(found),
        )


Told = Callable[[int | None], None]
Found = ReadResult | UnreadableOffsets | None


def answer(broker: Broker, wanted: Pull, told: Told, waits: Callable[[], bool]) -> None:
    """Tell where the reader continues; None: ask another broker. `waits`: whether it still wants to know."""
    leading, build = broker.leading, broker.cluster.build
    is_held = leading is not None and (broker.serving is not leading or not leading.may_answer())
    if broker.opened is None or is_held:
        told(None)
        return
    if leading is None:
        is_sure = "replica-is-sure" in build.flags
    else:
        is_sure = broker.log.confirm >= leading.core.epoch_start or "new-master-is-sure" in build.flags
    found = _found(broker, wanted)
    outcome = pull_outcome(found, wanted.offset, is_sure=is_sure)
    if leading is None or not outcome.needs_proof:
        _give(broker, wanted, found, outcome, told)
        return

    def proved(is_proven: bool) -> None:
        if not is_proven or broker.leading is not leading or not waits():
            told(None)
            return
        again = _found(broker, wanted)
        _give(broker, wanted, again, pull_outcome(again, wanted.offset, is_sure=True, is_proven=True), told)

    leading.barrier.wait(proved)


def _found(broker: Broker, wanted: Pull) -> Found:
    if broker.cluster.build.is_stored:
        return broker.log.read(wanted.queue, wanted.offset, wanted.count_max, BYTES_MAX)
    shelf = Shelf(broker.log, wanted.queue)
    reader = broker.cluster.build.reader(shelf, shelf, shelf, check=False)
    return reader.read(wanted.queue, wanted.offset, wanted.count_max, BYTES_MAX, None)


def _give(broker: Broker, wanted: Pull, found: Found, outcome: PullOutcome, told: Told) -> None:
    is_found = isinstance(found, ReadResult) and outcome.next_offset == found.next_offset
    decode = broker.log.decoded if broker.cluster.build.is_stored else _decoded
    records = list(map(decode, found.records)) if is_found else []
    broker.cluster.judge.pulled(broker, wanted, records, outcome.next_offset)
    told(outcome.next_offset)


def _decoded(data: memoryview) -> Record:
    _total, queue, epoch, position, offset, ident, _crc = HEAD.unpack_from(data)
    return position, queue, offset, ident, epoch
