"""A broker's log as the shipped store keeps it, on a disk that forgets: what `disk` models, for real.

The store's clock is the simulated one, its threads are `FlushLater` and `JobsLater`: what they do is done after a while
of the simulated time, and stands still while the process does. Messages are records whose body begins with their
number, in queues that the master opens by name when it first writes to them.

Invariant: a kill leaves what was written, a power cut what `platter` leaves; an abandoned store does nothing any more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.replication.epochs import Epochs
from broker.store.append.raw_part import RawPart
from broker.store.errors import GivenUp, UnreadableOffsets
from broker.store.index.reader import ReadResult
from broker.store.log.commit_log import list_segments
from broker.store.log.epoch_file import UNLIMITED
from broker.store.log.flush_thread import Flush, FlushThread
from broker.store.log.index_thread import Done, IndexThread, Job, Workers
from broker.store.log.metadata import load_mark
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import LightMQError
from remoting.protocol.records.record import HEADER, MESSAGE, RecordView
from runtime import files
from runtime.faults import FaultPoints
from tests.sim.cluster.disk import Record
from tests.sim.cluster.world import Violation, World, WorldLog
from tests.support.images import placed

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

SMALL = StoreSettings(
    segment_size_bytes=4096,
    index_tail_entries=64,
    index_merge_runs=3,
    key_index_entries=64,
    retention_ms=0,
    snapshot_log_bytes=3_000,
    free_space_bytes_min=1,
    ballast_size_bytes=0,
)
RETAINED_BYTES = 12_288
FILLING_BYTES_MAX = 300
BEGIN_MS = 1_700_000_000_000
JOB_MS = 4.0

Listener = Callable[[int], None]


class WorldClock:
    """The simulated time as the store's."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        """Wall time."""
        return BEGIN_MS + int(self._world.now)

    def now_ns(self) -> int:
        """The same in nanoseconds."""
        return self.now_ms() * 1_000_000

    def monotonic_ns(self) -> int:
        """Since the beginning."""
        return int(self._world.now * 1_000_000)


class StoreLines(WorldLog):
    """The store's log as lines of a replay, without the names of directories, which are others each time."""

    def info(self, event: str, **fields: object) -> None:
        kept = {name: value for name, value in fields.items() if name not in ("file", "remedy")}
        super().info(event, **kept)

    warning = error = info


class FlushLater(FlushThread):
    """Flushes after the time that the disk takes."""

    def __init__(self, log: StoredLog, flush: Flush, _interval_s: float) -> None:
        self._log, self._flush = log, flush
        self._is_wanted = self._is_closed = False

    def want(self) -> None:
        if not self._is_wanted:
            self._is_wanted = True
            self._log.later(self._log.flush_ms(), self._go)

    def close(self) -> None:
        self._is_closed = True
        self._flush()

    def _go(self) -> None:
        self._is_wanted = False
        if not self._is_closed and not self._flush():
            self._is_closed = True


class JobsLater(IndexThread):
    """Does one job after the other, each after a while; its result is there a moment later."""

    def __init__(self, log: StoredLog) -> None:
        self._log = log
        self._todo: list[tuple[Job, Done]] = []
        self._done: list[tuple[Done, Any, Exception | None]] = []
        self._is_busy = self._is_closed = False

    @property
    def pending(self) -> int:
        """Jobs whose results are not delivered."""
        return len(self._todo) + len(self._done)

    def submit(self, job: Job, done: Done) -> None:
        self._todo.append((job, done))
        self._plan()

    def drain(self) -> None:
        while self._todo or self._done:
            if self._todo:
                self._work()
            self._deliver()

    def close(self) -> None:
        self.drain()
        self._is_closed = True

    def abandon(self) -> None:
        self._is_closed = True
        self._todo.clear()
        self._done.clear()

    def _plan(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._log.later(self._log.job_ms(), self._go)

    def _go(self) -> None:
        self._is_busy = False
        if self._is_closed or not self._todo:
            return
        self._work()
        self._log.later(0, self._deliver)
        if self._todo:
            self._plan()

    def _work(self) -> None:
        job, done = self._todo.pop(0)
        result, error = None, None
        try:
            result = job()
        except Violation:
            raise
        except Exception as failure:
            error = failure
        self._done.append((done, result, error))

    def _deliver(self) -> None:
        while self._done:
            done, result, error = self._done.pop(0)
            done(result, error)


def descriptors(path: Path) -> set[int]:
    """Of this process, those of a file."""
    links = (each for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return {int(each.name) for each in links if str(each.readlink()) == str(path)}


class StoredLog:
    """The data directory of one broker, and its store while that is open."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.world = broker.world
        self.is_async = broker.cluster.build.is_async
        disks = broker.cluster.disks
        assert disks is not None
        self.platter = disks.add(broker.name, broker.world.chance)
        disks.at_end.append(self.kill)
        self._is_quick = broker.world.chance.random() < 0.5
        """Whether it flushes on the loop."""
        self.store: LogStore | None = None
        self._rotten: tuple[int, bytes] | None = None
        """Where a record is damaged, and what it was."""
        self._known_damage = UNLIMITED
        self._tail: set[int] = set()
        """Descriptors of the index's tail since the log was last opened or cut."""
        self._is_untouched = False
        """Whether the store is open since the start of the process, and nobody has asked for it yet."""
        self._opening = 0
        self._forget()

    def _forget(self) -> None:
        self._begin = self._end = self._flushed = self._confirm = 0
        self._epochs: list[tuple[int, int]] = []
        self._records: list[Record] = []
        self._read_end = -1
        """Up to where `_records` goes; -1: nothing was read."""

    # -- opening and closing ------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """What a starting process recovers: it opens the log as a replica's."""
        files._DURABLE.clear()  # another process knows nothing of what this one made durable
        self._open(0)
        self._is_untouched = True

    def open(self, epoch: int) -> OpenedStore:
        """Open it for the master of an epoch or, with 0, for a replica."""
        if not self._is_untouched or epoch:
            assert not self._is_untouched, "the first role is a replica's"
            self._open(epoch)
        self._is_untouched = False
        assert self.store is not None
        return OpenedStore(self._broker, self, self.store, epoch)

    def _open(self, epoch: int) -> None:
        assert self.store is None, "the log is open"
        self._opening += 1
        cluster = self._broker.cluster
        settings = replace(SMALL, retention_size_bytes=RETAINED_BYTES if cluster.has_retention else 0)
        if self.is_async:
            settings = replace(settings, flush="async", flush_interval_ms=int(self._broker.flush_ms))
        self._opened_in = self.platter.directory
        try:
            self.store = self._opened(settings, epoch)
        except (LightMQError, OSError) as error:
            raise Violation("every broker recovers", f"{self._broker.name}: {error}") from error
        self.was_opened()
        self._known_damage = self._first_damage(self.store)
        self._note()

    def was_opened(self) -> None:
        """Its parts are new."""
        self._tail = descriptors(self._opened_in / "index" / "tail")
        self._read_end = -1

    def _opened(self, settings: StoreSettings, epoch: int) -> LogStore:
        return LogStore.open(
            self._opened_in, settings, clock=WorldClock(self.world), faults=FaultPoints(),
            schedule=lambda function: self.later(0, function),
            soon=(lambda function: self.later(self.flush_ms(), function)) if self._is_quick else None,
            log=StoreLines(self.world, self._broker.name), role="writer" if epoch else "replica", epoch=epoch or None,
            workers=Workers(lambda flush, seconds: FlushLater(self, flush, seconds), lambda _: JobsLater(self)),
        )  # fmt: skip

    def close(self) -> None:
        """Close it in order."""
        store = self.store
        assert store is not None
        store.close()
        self._let_go()

    def _note(self) -> None:
        """Note how the log stands."""
        if (store := self.store) is not None:
            self._begin, self._end = store.begin_position, store.end_position
            self._flushed, self._confirm = store.positions.flushed, store.confirm_position
            self._epochs = store.replica.epochs

    def _let_go(self) -> None:
        self._note()
        self.store = None
        self._opening += 1

    def later(self, delay_ms: float, function: Callable[[], None]) -> None:
        """Call a function after a while, unless the store is another one by then."""
        self._broker.after(delay_ms, self._if_open, self._opening, function)

    def _if_open(self, opening: int, function: Callable[[], None]) -> None:
        if opening == self._opening:
            function()

    def flush_ms(self) -> float:
        """How long the present flush takes."""
        return self._broker.flush_ms * (0.3 + self.world.chance.random())

    def job_ms(self) -> float:
        """How long it takes until a job is done."""
        return JOB_MS * self.world.chance.random()

    def finds_damage(self) -> bool:
        """Whether a round of upkeep shows more damage than was known."""
        store = self.store
        if store is None or self._is_untouched:
            return False
        store.maintain(BEGIN_MS + int(self.world.now))
        before, self._known_damage = self._known_damage, self._first_damage(store)
        return self._known_damage < before

    def _first_damage(self, store: LogStore) -> int:
        """Where the first damage begins that the store knows of, which only a disk that was damaged may have."""
        if not store.quarantined:
            return UNLIMITED
        if self._rotten is None:
            known = [(each.start, each.end, each.reason) for each in store.quarantined]
            raise Violation("no damage without a damaged disk", f"{self._broker.name} finds {known}")
        return store.replica.sound_end

    # -- how it stands ------------------------------------------------------------------------------------------------

    @property
    def begin(self) -> int:
        """Its first position."""
        return self.store.begin_position if self.store is not None else self._begin

    @property
    def end(self) -> int:
        """Where the next record goes."""
        return self.store.end_position if self.store is not None else self._end

    @property
    def flushed(self) -> int:
        """Everything below it is on the disk, by the store's own account."""
        return self.store.positions.flushed if self.store is not None else self._flushed

    @property
    def kept(self) -> int:
        """Everything below it is as durable as configured."""
        return self.store.positions.kept if self.store is not None else self._flushed

    @property
    def confirm(self) -> int:
        """Everything below it is visible."""
        return self.store.confirm_position if self.store is not None else self._confirm

    @property
    def epochs(self) -> Epochs:
        """Who wrote what."""
        return Epochs(self.store.replica.epochs if self.store is not None else self._epochs)

    @property
    def records(self) -> list[Record]:
        """The messages, read from the log's files."""
        if self._read_end < self.begin:
            self._records, self._read_end = [], self.begin
        elif self._read_end > self.end:
            self._records, self._read_end = [each for each in self._records if each[0] < self.end], self.end
        while self._read_end < self.end:
            data = self.seen(self._read_end, self.end)
            total, magic, *_ = HEADER.unpack_from(data)
            if total < HEADER.size:
                raise Violation("a log is full of records", f"{self._broker.name} has none at {self._read_end}")
            if magic == MESSAGE:
                self._records.append(self.decoded(memoryview(data)))
            self._read_end += total
        if self._records and self._records[0][0] < self.begin:
            self._records = [each for each in self._records if each[0] >= self.begin]
        return self._records

    @property
    def starts(self) -> list[int]:
        """Where messages begin."""
        return [each[0] for each in self.records]

    @staticmethod
    def decoded(data: memoryview) -> Record:
        """The message in these bytes."""
        epoch, view = HEADER.unpack_from(data)[3], RecordView(data)
        ((_queue, offset),) = view.dispatch()
        ident = int.from_bytes(view.body[:8], "little")
        return view.position, view.topic[0], offset, ident, epoch

    def seen(self, start: int, end: int) -> bytes:
        """What readers of the files see."""
        found = bytearray()
        for path in list_segments(self.platter.directory / "log"):
            base = int(path.name)
            if base < end and base + path.stat().st_size > start:
                found += path.read_bytes()[max(start - base, 0) : end - base]
        return self._sound(start, bytes(found))

    def durable(self, start: int, end: int) -> bytes:
        """What is on the disk, whatever the store says."""
        return self._sound(start, self.platter.durable("log", start, end))

    def _sound(self, start: int, found: bytes) -> bytes:
        """What was found from a position on, as it was before it was damaged: the judge knows that it was there."""
        if self._rotten is None or self._broker.damage is None:
            return found
        at, record = self._rotten
        end = min(start + len(found), at + len(record))
        if at >= end or start >= end:
            return found
        first = max(at, start)
        return found[: first - start] + record[first - at : end - at] + found[end - start :]

    def held(self, start: int, end: int) -> bytes:
        """What counts: on the disk, or in a file where what is written counts and the machine runs."""
        return self.seen(start, end) if self.is_async else self.durable(start, end)

    # -- a master's ---------------------------------------------------------------------------------------------------

    def append(self, queue: int, ident: int, _epoch: int) -> tuple[int, int, int]:
        """Append a message; return its offset in the queue, where it stands, and the log's end."""
        store = self.store
        assert store is not None
        body = ident.to_bytes(8, "little") + bytes(self.world.chance.randrange(FILLING_BYTES_MAX))
        number = store.queues.open(b"queue %d" % queue)
        done = store.append(placed([number], body, topic=bytes([queue]), keys=b"%d" % (ident % 7)))
        return done.offsets[0], done.entries.position(0), done.end_position

    def confirm_no_more(self) -> None:
        """The role has ended: what is not confirmed may be lost."""
        if self.store is not None:
            self.store.positions.give_up(GivenUp("the role has ended", {}))

    def read(self, queue: int, offset: int, count_max: int, bytes_max: int) -> ReadResult | UnreadableOffsets | None:
        """What a pull finds."""
        assert self.store is not None
        number = self.store.queues.find(b"queue %d" % queue)
        if number is None:
            return None
        try:
            return self.store.reading.read(number, offset, count_max, bytes_max)
        except UnreadableOffsets as damaged:
            return damaged

    def expire(self, _position: int) -> None:
        """Retention is the store's own."""

    # -- accidents ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The process ends, the machine does not."""
        if (store := self.store) is not None:
            self._let_go()
            if store._closed and not self._tail & descriptors(self._opened_in / "index" / "tail"):
                return  # it lost its power in the middle of a cut
            store._give_back()

    def power_cut(self, mood: str = "") -> None:
        """The machine loses its power."""
        self.kill()
        if not self.platter.is_out:
            self.platter.cut_power(mood)
        self.platter.fuse, self.platter.is_out = 0, False

    def may_rot(self) -> list[int]:
        """Records that are known to be durable after a crash too: what follows may be taken for a torn tail."""
        if self.store is None:
            return []
        mark, starts = load_mark(self.platter.directory), self.starts
        return [at for at, end in pairwise([*starts, self.end]) if mark is not None and end <= mark.position]

    def rot(self, position: int) -> None:
        """Damage a record."""
        (total,) = struct.unpack("<I", self.seen(position, position + 4))
        self._rotten = position, self.seen(position, position + total)
        self.platter.rot("log", position + self.world.chance.randrange(total))

    def heal(self) -> None:
        """No accident is to come any more."""
        self.platter.fuse = 0

    def wipe(self) -> None:
        """A new disk takes its place."""
        self.platter.wipe()
        self._forget()


class OpenedStore:
    """The open store as streams and the role see it, and the judge along the way."""

    def __init__(self, broker: Broker, log: StoredLog, store: LogStore, epoch: int) -> None:
        self._broker, self._log, self._store, self._epoch = broker, log, store, epoch
        self._is_closed = False
        self.positions = self.replica = self
        store.positions.on_kept(lambda _kept: self._moved())

    @property
    def store(self) -> LogStore:
        """What is open."""
        if self._is_closed or self._log.store is not self._store:
            raise Violation("a closed log is not used", self._broker.name)
        return self._store

    def close(self) -> None:
        """Nothing may use it any more."""
        self._is_closed = True
        self._log.close()

    def _moved(self) -> None:
        if self._log.store is self._store:
            self._broker.confirmed()

    @property
    def begin_position(self) -> int:
        """Its first position."""
        return self.store.begin_position

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        return self.store.end_position

    @property
    def confirm_position(self) -> int:
        """Everything below it is visible."""
        return self.store.confirm_position

    @property
    def kept(self) -> int:
        """Everything below it is as durable as configured."""
        return self.store.positions.kept

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """Who wrote what."""
        return self.store.replica.epochs

    def on_written(self, listener: Listener) -> None:
        """Report each new end of what is written."""
        self.store.positions.on_written(listener)

    def on_kept(self, listener: Listener) -> None:
        """Report each new end of what is kept."""
        self.store.positions.on_kept(listener)

    def limit_confirm(self, limit: int | None) -> None:
        """Confirm nothing beyond."""
        if self._epoch and limit is not None:
            self._broker.cluster.judge.granted(limit)
        self.store.positions.limit_confirm(limit)
        self._moved()

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """The part at a position."""
        return self.store.replica.raw(position, bytes_max)

    def examine(self, position: int) -> None:
        """Search for damage."""
        self.store.replica.examine(position)

    # -- a replica's --------------------------------------------------------------------------------------------------

    @property
    def quarantined(self) -> Sequence[object]:
        """Its damaged ranges."""
        return self.store.quarantined

    @property
    def sound_end(self) -> int:
        """Where its first damage begins."""
        return self.store.replica.sound_end

    def append_raw(self, part: RawPart) -> int:
        """Append a part of the master's log."""
        return self.store.replica.append_raw(part)

    def truncate(self, position: int) -> None:
        """Cut, durably."""
        self._cuts(f"a cut at {position}", position)
        self.store.replica.truncate(position)
        self._was_cut(position)

    def reset(self, position: int) -> None:
        """Start over, durably."""
        self._cuts(f"a start at {position}", max(position, self._log.begin))
        self.store.replica.reset(position)
        self._was_cut(0)

    def _cuts(self, what: str, position: int) -> None:
        if position < self._log.confirm and self._broker.damage is None:
            self._broker.cluster.judge.cut_below_confirm(self._broker, what)
        self._broker.world.tell(self._broker.name, f"{what}, the log ended at {self._log.end}")

    def _was_cut(self, position: int) -> None:
        self._broker.cut_away(position)
        self._log.was_opened()
        self._broker.cluster.judge.was_cut(self._broker)

    # -- a master's --------------------------------------------------------------------------------------------------

    def settle_damage(self) -> None:
        """Go on without what its damage took."""
        self.store.replica.settle_damage()

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """The first record of an elected master."""
        return self.store.append_state(changes)

    def wrote(self) -> None:
        """The store reports what is written."""

    def flushed(self) -> None:
        """The store reports what is kept."""
