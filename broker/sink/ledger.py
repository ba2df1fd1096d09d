"""The ledger of exactly-once sinks: the last committed batch of each sink, and commits in progress.

A commit makes exactly the listed attempts visible: their rows are appended again, now to the queues of their topics, as
one atomic group together with its LEDGER record. A commit larger than `group_bytes_max` becomes several groups; each
group's LEDGER record has the number of rows done and the attempts, so that after kill -9 the commit continues where it
stopped, with the attempts it began with, whatever a repeated request lists.

A batch that is staged at several broker groups is decided by its commit at one of them, the sink's home. The plan, what
is to be committed at the others, is part of the home's LEDGER record, so that the successor of a dead driver finishes
the same batch; the others have `prepared` it before, which keeps their attempts from expiry and abort.

```
LEDGER   key = sink   value = msgpack array [last batch, null | open, plan, [[batch, handles]... prepared], digest]
open     [batch, handles, rows done, plan, digest]
handles  [[partition, attempt, count]...]    plan  [[group, handles]...]    digest  null | BatchDigest
```
The digest of a batch is kept as the driver gave it, at the home alone, for whoever repeats the batch: a record without
one, of an earlier release or a driver that gave none, says nothing about the rows.
Invariant: a row of a committed batch is visible exactly once; a batch at or below the last one is never appended again;
what is prepared goes only with the commit of its batch or of a later one. Loop thread only.

Staged attempts of sinks: rows that a Spark task has written but its batch has not committed.

Each attempt is a hidden queue of the log, named `0x01 stage 0x00 sink 0x00 batch 0x00 partition 0x00 attempt`; its
records carry the STAGED flag and are dispatched to that queue alone, so no reader of any topic can see them. The
record's producer_seq has what is needed to place it later, see `remoting.protocol.records.image`. A staged batch stays
a batch, so the hidden queue counts messages as the queues of its topic will. Because attempts are ordinary queues they
survive kill -9 without a table of their own. Invariant: no pull reads a hidden queue. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker.store.errors import UnreadableOffsets
from broker.store.placed import Placed, together
from broker.store.state import state_kinds
from broker.store.state.name_table import names_with_prefix
from broker.store.state.state_kinds import StateChange
from remoting.native import core as native
from remoting.protocol.bodies.sink_body import BatchDigest
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import show
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.store.log_store import LogStore


STAGE_PREFIX = b"\x01stage\x00"
SINK_NAME_BYTES_MAX = 255
KEPT_EXPIRY_FACTOR = 7
"""Rows prepared for a commit are kept this many times longer than others: it may be decided already."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """The identity of one attempt."""

    sink: str
    batch: int
    partition: int
    attempt: int

    def queue_name(self) -> bytes:
        """Store name of the hidden queue."""
        numbers = (self.batch, self.partition, self.attempt)
        return STAGE_PREFIX + b"\x00".join((self.sink.encode(), *(str(number).encode() for number in numbers)))


@dataclass(slots=True)
class Attempt:
    """One attempt: its hidden queue, when rows last came, and whether a commit of it is prepared."""

    queue_id: int
    seen_ms: int
    kept: bool = False


def parse_queue_name(name: bytes) -> AttemptKey:
    """The attempt a hidden queue belongs to."""
    sink, batch, partition, attempt = name[len(STAGE_PREFIX) :].split(b"\x00")
    return AttemptKey(sink.decode(), int(batch), int(partition), int(attempt))


def check_sink(sink: str) -> None:
    """Refused when a sink's name cannot be part of a queue name."""
    if not sink or "\x00" in sink or len(sink.encode()) > SINK_NAME_BYTES_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"sink name {sink!r} is empty, too long, or has a zero byte")


class Stages:
    """All staged attempts and their hidden queues."""

    def __init__(self, store: LogStore, hidden: set[int], *, expiry_ms: int, attempts_max: int, now_ms: int) -> None:
        """`hidden`: queues that readers never see; those of the attempts are added while they exist."""
        self._store = store
        self._expiry_ms = expiry_ms
        self._attempts_max = attempts_max
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._hidden = hidden
        self.expired = 0
        for name in names_with_prefix(store.state.queues, STAGE_PREFIX):
            queue_id = store.queues.find(name)
            if queue_id is not None:
                self._attempts[parse_queue_name(name)] = Attempt(queue_id, now_ms)
                self._hidden.add(queue_id)

    def __len__(self) -> int:
        return len(self._attempts)

    def find(self, key: AttemptKey) -> Attempt | None:
        """The attempt, or None when nothing is staged under that key."""
        return self._attempts.get(key)

    def staged(self, key: AttemptKey) -> int:
        """Rows staged so far, confirmed or not."""
        attempt = self._attempts.get(key)
        return self._store.reading.next_offset(attempt.queue_id) if attempt is not None else 0

    def open(self, key: AttemptKey, now_ms: int) -> Attempt:
        """The attempt, created with its hidden queue on first use."""
        attempt = self._attempts.get(key)
        if attempt is None:
            check_sink(key.sink)
            if len(self._attempts) >= self._attempts_max:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"stage_attempts_max {self._attempts_max} attempts are staged")
            attempt = Attempt(self._store.queues.open(key.queue_name()), now_ms)
            self._attempts[key] = attempt
            self._hidden.add(attempt.queue_id)
        attempt.seen_ms = now_ms
        return attempt

    def drop(self, sink: str, batch_max: int) -> int:
        """Delete all attempts of a sink up to and including a batch; returns how many."""
        return self._delete([key for key in self._attempts if key.sink == sink and key.batch <= batch_max])

    def abort(self, sink: str, batch: int) -> int:
        """Delete all attempts of one batch but those prepared for its commit; returns how many."""
        found = [key for key, item in self._attempts.items() if key.sink == sink and key.batch == batch]
        return self._delete([key for key in found if not self._attempts[key].kept])

    def expire(self, now_ms: int) -> int:
        """Delete the attempts not written to for `expiry_ms`, prepared ones later; returns how many."""
        stale = [key for key, item in self._attempts.items() if now_ms - item.seen_ms >= self._expiry_of(item)]
        count = self._delete(stale)
        self.expired += count
        return count

    def keep(self, key: AttemptKey) -> None:
        """Keep an attempt for a prepared commit."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.kept = True

    def _expiry_of(self, attempt: Attempt) -> int:
        return self._expiry_ms * KEPT_EXPIRY_FACTOR if attempt.kept else self._expiry_ms

    def _delete(self, keys: list[AttemptKey]) -> int:
        for key in keys:
            attempt = self._attempts.pop(key)
            self._hidden.discard(attempt.queue_id)
            self._store.queues.delete([attempt.queue_id])
        return len(keys)


NO_BATCH, MAX_BATCH = -1, 2**63 - 1
"""Last batch of a sink that never committed, and the highest possible batch."""

Handle = tuple[int, int, int]
"""(partition, attempt, number of rows)."""


Plan = list[tuple[str, list[Handle]]]
"""The part of a batch at other broker groups: (group, handles)."""

PREPARED_MAX = 64
"""Prepared lists of attempts one sink may have; each driver that dies between two steps leaves one."""


class OpenCommit(msgspec.Struct, array_like=True):
    """A commit with some of its groups in the log."""

    batch: int
    handles: list[Handle]
    done: int
    plan: Plan = []
    digest: BatchDigest | None = None


class LedgerRecord(msgspec.Struct, array_like=True):
    """What is known of one sink."""

    last_batch: int
    open: OpenCommit | None = None
    plan: Plan = []
    prepared: list[tuple[int, list[Handle]]] = []
    digest: BatchDigest | None = None


@dataclass(slots=True)
class CommitRun:
    """A commit in progress; its answer waits for `position`."""

    sink: str
    batch: int
    handles: list[Handle]
    total: int
    done: int = 0
    finished: bool = False
    position: int = 0
    plan: Plan = field(default_factory=list)
    digest: BatchDigest | None = None


_decode = msgspec.msgpack.Decoder(LedgerRecord).decode
_encode = msgspec.msgpack.Encoder().encode


class SinkLedger:
    """Commits batches of sinks; repeated commits change nothing."""

    def __init__(
        self,
        store: LogStore,
        stages: Stages,
        placement: Placement,
        *,
        group_bytes_max: int,
        sinks_max: int,
        refused: Callable[[str], None],
    ) -> None:
        """`refused(reason)` counts."""
        self.sinks_max = sinks_max
        self._refused = refused
        self._store = store
        self._stages = stages
        self._placement = placement
        self._group_bytes_max = group_bytes_max
        for key, (value, _position) in store.state.items(state_kinds.LEDGER):
            for batch, handles in _decode(value).prepared:
                self._keep(bytes(key).decode(), batch, handles)

    def admit(self, sink: str) -> None:
        """Return when a sink is known, or may be. Refused: its name is not valid, or FLOW_CONTROL, there are too many.

        A ledger has no end of its own: without it a query that comes back would write its last batch again.
        """
        check_sink(sink)
        known = self._store.state.count(state_kinds.LEDGER)
        if known >= self.sinks_max and self._store.state.get(state_kinds.LEDGER, sink.encode()) is None:
            self._refused("sinks")
            raise Refused(
                ResponseCode.FLOW_CONTROL,
                f"sinks_max: the last batches of {known} sinks are remembered here, and {sink!r} would be one more; "
                "raise broker.limits.sinks_max",
            )

    def last_batch(self, sink: str) -> tuple[int, int]:
        """(last committed batch or -1, log position that an answer showing it waits for)."""
        record, position = self._record(sink)
        return record.last_batch, position

    def plan(self, sink: str) -> Plan:
        """The part of the last committed batch at other broker groups."""
        return self._record(sink)[0].plan

    def digest(self, sink: str) -> BatchDigest | None:
        """What the rows of the last committed batch were, as its driver said; None where it did not."""
        return self._record(sink)[0].digest

    def prepare(self, sink: str, batch: int, handles: Sequence[Handle]) -> int:
        """Check attempts and keep them for a commit that may come late; returns the log position of that record.

        Raises:
            Refused: an attempt is not staged or incomplete, or too much is prepared for this sink; as `admit`.
        """
        self.admit(sink)
        record, position = self._record(sink)
        wanted = (batch, [tuple(handle) for handle in handles])
        if batch <= record.last_batch or wanted in record.prepared:
            return position
        for handle in handles:
            self._check(sink, batch, handle)
        if len(record.prepared) >= PREPARED_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"sink {sink!r} has prepared {PREPARED_MAX} times without a commit")
        record.prepared.append((batch, list(handles)))
        end = self._store.append_state([StateChange(state_kinds.LEDGER, sink.encode(), _encode(record))])
        self._keep(sink, batch, handles)
        return end

    def unfinished(self) -> list[CommitRun]:
        """Commits that a stop of the broker interrupted; run `step` on each until it is finished."""
        runs = []
        for key, (value, _position) in list(self._store.state.items(state_kinds.LEDGER)):
            record = _decode(value)
            if record.open is not None:
                runs.append(self._resumed(bytes(key).decode(), record.open))
        return runs

    def begin(
        self,
        sink: str,
        batch: int,
        handles: Sequence[Handle],
        plan: Plan | None = None,
        digest: BatchDigest | None = None,
    ) -> CommitRun | None:
        """Check a commit and begin it; None when the batch is committed already.

        `plan`: the part of the batch at other broker groups, which this commit decides too; `digest`: its rows.

        Raises:
            Refused: an attempt is not staged or incomplete, another batch of the sink is half committed, or other
                attempts of this one are prepared; as `admit`.
        """
        self.admit(sink)
        record, _position = self._record(sink)
        if batch <= record.last_batch:
            return None
        if record.open is not None:
            if record.open.batch != batch:
                raise Refused(
                    ResponseCode.SYSTEM_BUSY, f"batch {record.open.batch} of sink {sink!r} is being committed; repeat"
                )
            return self._resumed(sink, record.open)
        prepared = [one for its, one in record.prepared if its == batch]
        if prepared and list(handles) not in prepared:
            # Another group may have decided this batch: its decision is among these, and only that may be committed.
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch {batch} of sink {sink!r} was prepared here for a commit at another broker group; that group "
                "must be reachable to answer whether it was decided",
            )
        for handle in handles:
            self._check(sink, batch, handle)
        total = sum(count for _partition, _attempt, count in handles)
        return CommitRun(sink, batch, list(handles), total, plan=plan or [], digest=digest)

    def step(self, run: CommitRun) -> None:
        """Append the next group of a commit; the last one closes the batch and drops what was staged for it."""
        assert not run.finished, run
        group = self._next_group(run)
        done = run.done + group.count
        assert group.count or done == run.total, run
        finished = done == run.total
        last, _position = self._record(run.sink)
        if finished:
            prepared = [one for one in last.prepared if one[0] > run.batch]
            record = LedgerRecord(run.batch, plan=run.plan, prepared=prepared, digest=run.digest)
        else:
            record = msgspec.structs.replace(last, open=OpenCommit(run.batch, run.handles, done, run.plan, run.digest))
        change = StateChange(state_kinds.LEDGER, run.sink.encode(), _encode(record))
        if group.count:
            run.position = self._store.append(group, atomic=True, changes=[change]).end_position
        else:
            run.position = self._store.append_state([change])
        run.done, run.finished = done, finished
        if finished:
            self._stages.drop(run.sink, run.batch)

    def abort(self, sink: str, batch: int) -> int:
        """Drop what is staged for a batch, unless its commit has begun; returns the number of attempts dropped."""
        record, _position = self._record(sink)
        if record.open is not None and record.open.batch == batch:
            return 0
        return self._stages.abort(sink, batch)

    def forget(self, sink: str) -> int:
        """Remove a sink that will not commit again, with its ledger and staged rows; returns the position to wait for.

        Raises:
            Refused: a commit of it has begun and is not finished.
        """
        record, position = self._record(sink)
        if record.open is not None:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"batch {record.open.batch} of sink {sink!r} is being committed")
        self._stages.drop(sink, MAX_BATCH)
        if not position:
            return 0
        return self._store.append_state([StateChange(state_kinds.LEDGER, sink.encode(), None)])

    def expire(self, now_ms: int) -> int:
        """Drop the attempts that were not committed in time; returns how many."""
        return self._stages.expire(now_ms)

    def _record(self, sink: str) -> tuple[LedgerRecord, int]:
        found = self._store.state.get(state_kinds.LEDGER, sink.encode())
        if found is None:
            return LedgerRecord(NO_BATCH), 0
        value, position = found
        return _decode(value), position + 1

    @staticmethod
    def _resumed(sink: str, commit: OpenCommit) -> CommitRun:
        total = sum(count for _partition, _attempt, count in commit.handles)
        return CommitRun(sink, commit.batch, commit.handles, total, commit.done, plan=commit.plan, digest=commit.digest)

    def _keep(self, sink: str, batch: int, handles: Sequence[Handle]) -> None:
        for partition, attempt, _count in handles:
            self._stages.keep(AttemptKey(sink, batch, partition, attempt))

    def _check(self, sink: str, batch: int, handle: Handle) -> None:
        partition, attempt, count = handle
        key = AttemptKey(sink, batch, partition, attempt)
        found = self._stages.find(key)
        what = f"attempt {attempt} of partition {partition}, batch {batch}, sink {sink!r}"
        if found is None:
            if count == 0:
                return
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{what} is not staged here")
        oldest, confirmed = self._store.reading.bounds(found.queue_id)
        if oldest > 0:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{what} is beyond the log's retention: rows were deleted")
        if confirmed < count <= self._store.reading.next_offset(found.queue_id):
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{what} is not confirmed by this new master yet")
        if confirmed != count:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{what} has {confirmed} rows, its handle has {count}")

    def _next_group(self, run: CommitRun) -> Placed:
        """The messages of the next group: the rows that follow those done, up to `group_bytes_max`."""
        parts: list[Placed] = []
        room = self._group_bytes_max
        taken = first = 0
        for partition, attempt, count in run.handles:
            start = run.done + taken - first
            first += count
            if not 0 <= start < count:
                continue
            key = AttemptKey(run.sink, run.batch, partition, attempt)
            placed, used = self._shown(key, start, count, room)
            parts.append(placed)
            start += placed.count
            taken += placed.count
            room -= used
            if room <= 0 or start < count:
                break
        return together(parts)

    def _shown(self, key: AttemptKey, start: int, count: int, room: int) -> tuple[Placed, int]:
        """Rows of an attempt from `start` as messages with their queues, at least one, and their size when staged."""
        found = self._stages.find(key)
        if found is None:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"{key} is missing although its commit has begun")
        with suppress(UnreadableOffsets):  # the slower way below names the error
            rows = self._store.reading.read_range(found.queue_id, start, count - start, room, count)
            images = native.core.shown(rows.blob, rows.starts)
            if images and rows.first_offset == start:
                return self._placement.placed(images), len(rows.blob)
        records = self._read(key, found, start, count, room)
        images = b"".join([show(RecordView(record)) for record in records])
        return self._placement.placed(images), sum(map(len, records))

    def _read(self, key: AttemptKey, found: Attempt, start: int, count: int, room: int) -> list[memoryview]:
        """Staged rows of an attempt from `start`, at least one, up to `room` bytes."""
        result = self._store.reading.read(found.queue_id, start, count - start, room, end_offset=count)
        if not result.records and start >= result.max_offset:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"rows of {key} are not confirmed by this new master yet")
        if not result.records or result.first_offset != start:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"rows of {key} are missing")
        return result.records
