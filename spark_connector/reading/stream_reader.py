"""`spark.readStream.format("rocketmq")`: the driver's side of a stream, and its tasks.

The object lives in one process per query. Spark calls `latestOffset` in a loop (the long poll happens there, so an idle
query costs next to nothing), then `partitions` for what lies between two points, and `commit` one batch late. A third
process pickles the object for the workers, so what it holds is plain data until the first question to a broker.

Invariants: `initialOffset` answers the same for the life of the object; the end of batch 0 carries where batch 0
begins; an offset never goes back; nothing new gives the very offset that was passed in, so that no empty batch is
made. Thread rule: one thread.

Replay of history at a multiple of its own speed, all queues in step, then live: the option `replaySpeed`.

A stream that begins in the past would take everything there is with its first batch, or with a limit one queue's hours
beside another one's minutes, and event-time windows would throw away what seems late. Here a clock runs through the
log's store times, `speed` times as fast as ours, and no batch reads beyond it; when it has caught up the stream is live
and stays so.

Invariants: only how far a batch goes is limited, so what is read and where the checkpoint continues is as without it;
the clock begins at the oldest message not read yet, also after a restart. Thread rule: the driver-side process of the
query.

Report to a broker's consumer group how far a query has committed, so that operators see its lag.

Invariant: only a report; nothing is ever read back. Spark reports a finished batch when it begins the next one, so
the report is one batch behind. Thread rule: the driver-side process of the query.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from remoting import clock
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers import Outage, patiently
from spark_connector.errors import BrokerRefused, BrokerUnreachable, GroupAbsent, OptionError
from spark_connector.options.option_table import LATEST
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading import planner
from spark_connector.reading.bounds import BoundsWatch, prove_ends, waiting_ms
from spark_connector.reading.filters import left_out, wanted_of
from spark_connector.reading.offsets import OffsetMemory, Positions, StreamOffset, begun_anew, total_behind
from spark_connector.reading.planner import starting_positions
from spark_connector.reading.selection import Bounds, check_partitions, check_present, row_filter, select
from spark_connector.reading.task import RangePartition, check_schema, mean_record_bytes, read_task, report_losses
from spark_connector.worker import Clock, wall_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


PAUSE_S = 0.05
"""Pause before the next look when no message is due; Spark itself would look 90 times a second."""


class Replay:
    """The clock of one query's run; `is_live` once there is nothing to hold back any more."""

    def __init__(self, speed: float, now_ms: Clock = wall_ms) -> None:
        self._speed = speed
        self._now_ms = now_ms
        self._began: tuple[int, int] | None = None
        """Our time and the log's when the replay began."""
        self._is_asked = False
        self.is_live = False

    def cap(self, begin: Positions, bounds: Mapping[QueueKey, Bounds], watch: BoundsWatch) -> Positions | None:
        """Return how far the next batch may go in every queue; None when live. Raises BrokerUnreachable.

        The first call lets nothing pass: Spark's first batch takes seconds to start, and the clock must not run by
        then.
        """
        if self.is_live:
            return None
        if not self._is_asked:
            self._is_asked = True
            return begin
        now_ms = self._now_ms()
        if self._began is None and not self._begin(begin, bounds, watch, now_ms):
            return None if self.is_live else begin
        reached_ms = self._reached_ms(now_ms)
        if reached_ms >= now_ms:
            self.is_live = True
            return None
        return {key: queue.reached for key, queue in watch.read(at_ms=reached_ms).items()}

    def _begin(self, begin: Positions, bounds: Mapping[QueueKey, Bounds], watch: BoundsWatch, now_ms: int) -> bool:
        """Start the clock at the oldest message not read; False when there is none, or no broker answered."""
        waits = waiting_ms(begin, bounds, watch.masters, now_ms)
        if waits:
            self._began = (now_ms, now_ms - max(waits.values()))
            return True
        self.is_live = not total_behind(begin, {key: queue.max for key, queue in bounds.items()}, bounds)
        return False

    def _reached_ms(self, now_ms: int) -> int:
        assert self._began is not None, "asked only once the clock runs"
        ours, theirs = self._began
        return theirs + int((now_ms - ours) * self._speed)


def commit_progress(group: str, positions: Positions, watch: BoundsWatch) -> None:
    """Send the position of every queue, all of a broker at once; raises BrokerUnreachable or BrokerRefused."""
    if not watch.masters:
        watch.read()
    for broker, master in watch.masters.items():
        commands = [
            Command(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                fields={
                    "consumerGroup": group,
                    "topic": key.topic,
                    "queueId": str(key.queue),
                    "commitOffset": str(position),
                },
            )
            for key, position in sorted(positions.items())
            if key.broker == broker
        ]
        for reply in master.ask_all(commands) if commands else ():
            master.check(reply)


LOG = logging.getLogger("lightmq.spark")
IDLE_CALLS = 5
"""A query is idle after this many calls in a row without new messages, each right behind the answer before."""
IDLE_POLL_MS = 600
"""How long an idle query lets the broker hold its request, even where `longPollMs` is less; a new message ends that."""
ALONE_S = 0.1
"""A question this soon behind the last answer means that Spark had nothing else to do: no other source had messages."""


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What stands for a reader that cannot be made: its first use raises why.

    Where Spark's process for a source fails to make the reader it ends with an error of its own (UnboundLocalError),
    which is what users would see last.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Raises the error."""
        raise self._error

    initialOffset = getDefaultReadLimit = latestOffset = _refuse  # noqa: N815 - Spark's names
    prepareForTriggerAvailableNow = partitions = read = _refuse  # noqa: N815


class Losses:
    """Messages of one query that expired before they could be read: each loss is reported once, each message counted
    once."""

    def __init__(self, options: ReadOptions) -> None:
        self.messages = 0
        """Messages lost so far (where failOnDataLoss allows that)."""
        self.anew = 0
        """Queues that were begun anew, because their topic or log is another one than before."""
        self._options = options
        self._reported: set[str] = set()
        self._counted_to: dict[QueueKey, int] = {}

    def report(self, lost: Sequence[str]) -> None:
        """Raise DataLost, or log each accepted loss once."""
        fresh = [text for text in lost if text not in self._reported]
        report_losses(fresh, self._options)
        self._reported.update(fresh)

    def report_anew(self, changed: Mapping[QueueKey, str], positions: Positions) -> None:
        """Raise DataLost for queues that are others than those that were read, or log and count them once."""
        read: dict[str, int] = {}
        for key, reason in changed.items():
            read[reason] = max(read.get(reason, 0), positions[key])
        texts = {
            reason: f"{reason}, and the offsets that were read, up to {most}, are not of it"
            for reason, most in read.items()
        }
        fresh = {reason for reason, text in texts.items() if text not in self._reported}
        self.report(list(texts.values()))
        self.anew += sum(reason in fresh for reason in changed.values())

    def count(self, begin: Positions, bounds: Mapping[QueueKey, Bounds]) -> None:
        """Count what has expired behind a beginning."""
        for key, (first, end) in planner.expired_ranges(begin, bounds).items():
            counted_to = self._counted_to.get(key, 0)
            self.messages += max(0, end - max(first, counted_to))
            self._counted_to[key] = max(end, counted_to)


class Pace:
    """When Spark asked for offsets and got nothing or a batch, by the monotonic clock."""

    def __init__(self) -> None:
        self._idle_calls = 0
        self._nothing_at: float | None = None
        """When "nothing new" was answered last, None behind any other answer."""
        self._batch_at: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the last IDLE_CALLS questions found nothing, each right behind the answer before."""
        return self._idle_calls >= IDLE_CALLS

    @property
    def since_batch_ms(self) -> float | None:
        """How long ago the last batch was offered; None before the first."""
        return None if self._batch_at is None else (clock.monotonic_s() - self._batch_at) * 1000

    def asked(self) -> None:
        """Spark asks how far the next batch goes."""
        is_soon = self._nothing_at is not None and clock.monotonic_s() - self._nothing_at <= ALONE_S
        self._idle_calls = self._idle_calls + 1 if is_soon else 0
        self._nothing_at = None

    def found_nothing(self) -> None:
        """Note when Spark got the answer that there is nothing new."""
        self._nothing_at = clock.monotonic_s()

    def offered_batch(self) -> None:
        """Note when a batch is offered to Spark."""
        self._batch_at = clock.monotonic_s()


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their tasks."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._stage = check_schema(schema, options)
        if any(
            end is not None
            for end in (options.ending_offsets, options.ending_timestamp, options.ending_offsets_by_timestamp)
        ):
            raise OptionError(
                "the options 'endingOffsets', 'endingTimestamp' and 'endingOffsetsByTimestamp' are for batch reads; a "
                "stream has no end"
            )
        if options.infer_schema and options.schema_location is None:
            raise OptionError(
                "option 'inferSchema': a stream needs the option 'schemaLocation', a file that keeps the columns, "
                "because messages of tomorrow must not change the columns of a running query; or set 'decodeSchema'"
            )
        self._schema = schema
        self._options = options
        self._selection = select(options)
        self._row_filter = row_filter(self._selection, options)
        self._wanted = wanted_of(self._selection, options)
        self._initial: dict[str, Any] | None = None
        self._watch: BoundsWatch | None = None
        self._bounds: Mapping[QueueKey, Bounds] = {}
        self._cap: Positions | None = None
        self._losses = Losses(options)
        self._planned: Positions = {}
        """How far the batch just offered goes, empty when there is none; for the report of what waits behind it."""
        self._replay = None if options.replay_speed is None else Replay(options.replay_speed)
        self._outage = Outage(options)
        self._memory = OffsetMemory(kafka=options.schema == "kafka")
        self._pace = Pace()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new query begins; also asked after a restart before batch 0 was committed, see `partitions`."""
        if self._initial is None:
            watch, selection = self._connected(), self._selection
            patiently(watch.find_groups, self._options, GroupAbsent)
            self._bounds = patiently(watch.complete, self._options)
            check_present(selection, self._bounds)
            check_partitions(self._options, self._bounds)
            start = starting_positions(self._options, selection, self._bounds, lambda ms: watch.read(at_ms=ms), LATEST)
            self._losses.report(planner.losses(start, self._bounds))
            point = StreamOffset(self._within(start), initial=True, lives=watch.lives(start), wanted=self._wanted)
            self._initial = self._memory.to_json(point)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit Spark hands back to `latestOffset`; it cannot carry both, so rows go first."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return how far the next batch goes; waits at the broker for a moment when there is nothing new."""
        self._pace.asked()
        begin = self._memory.from_json(start)
        self._planned = {}
        try:
            self._bounds = self._connected().wait(self._wait_ms(begin.positions))
            self._check_brokers(begin.positions)
            begin = self._in_this_life(begin)
            prove_ends(begin.positions, self._bounds, self._connected().masters)
            found = self._next(begin, limit)
        except BrokerUnreachable as failure:
            self._outage.pause_after(failure)
            return start
        self._outage.end()
        if found is not None:
            return self._memory.to_json(found)
        if self._replay is not None and not self._replay.is_live:
            time.sleep(PAUSE_S)
        self._pace.found_nothing()
        return start

    def _next(self, begin: StreamOffset, limit: ReadLimit) -> StreamOffset | None:
        """How far the next batch goes; None when none is to be made now."""
        check_partitions(self._options, self._bounds)
        self._losses.report(planner.losses(begin.positions, self._bounds))
        self._losses.count(begin.positions, self._bounds)
        cap = self._limit(begin.positions)
        ends = planner.advance(begin.positions, self._bounds, cap=cap)
        if not begin.initial and not isinstance(limit, ReadAllAvailable) and self._delay_ms(begin.positions):
            return None
        rows_max = self._rows_max(begin.positions, ends, limit)
        if rows_max is not None:
            ends = planner.advance(begin.positions, self._bounds, rows_max=rows_max, cap=cap)
        if not begin.initial and all(ends[key] == begin.positions.get(key, 0) for key in ends):
            return None
        self._planned = ends
        self._pace.offered_batch()
        lives = begin.lives.then(self._connected().lives(ends))
        origin = begin.positions if begin.initial else None
        return StreamOffset(ends, origin=origin, lives=lives, wanted=self._wanted)

    def _in_this_life(self, begin: StreamOffset) -> StreamOffset:
        """The same point, at the beginning of every queue that is another one than before, if that is allowed."""
        self._check_filters(begin)
        changed = begun_anew(begin.positions, begin.lives, self._connected().lives(begin.positions))
        self._losses.report_anew(changed, begin.positions)
        return self._anew(begin, changed)

    def _check_filters(self, point: StreamOffset) -> None:
        """Raise DataLost, or log once, where older rows are left out that are wanted now; see `filters`."""
        if point.lives and point.wanted != self._wanted and (what := left_out(point.wanted, self._wanted)):
            self._losses.report([f"older {what}, are not read with this checkpoint"])

    def _anew(self, begin: StreamOffset, changed: Collection[QueueKey]) -> StreamOffset:
        if not changed:
            return begin
        first = {key: self._bounds[key].min for key in changed if key in self._bounds}
        return replace(begin, positions={**begin.positions, **first})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of all queues as last seen; Spark shows it as the source's latestOffset: lag is visible."""
        if not self._bounds:
            return None
        ends = {key: bounds.max for key, bounds in self._bounds.items()}
        waits = waiting_ms(self._planned, self._bounds, self._connected().masters, wall_ms())
        report = StreamOffset(ends, waiting_ms=waits, lost=self._losses.messages, anew=self._losses.anew)
        return self._memory.to_json(report)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix what "available now" means: the ends at this moment."""
        self._bounds = patiently(self._connected().complete, self._options, GroupAbsent)
        self._cap = {key: bounds.max for key, bounds in self._bounds.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut what lies between two points into tasks; batch 0 begins where its own end records it."""
        stop = self._memory.from_json(end)
        watch = self._connected()
        # What was planned just now was planned by these very bounds.
        while stop.positions is not self._planned and self._lacks(stop.positions):
            try:
                self._bounds = watch.read()
                self._check_brokers(stop.positions)
                prove_ends(self._readable(stop), self._bounds, watch.masters)
                break
            except BrokerUnreachable as failure:
                self._outage.pause_after(failure)
        self._outage.end()
        if stop.origin is not None:
            begin = stop.origin
        else:
            first = self._memory.from_json(start)
            begin = self._anew(first, begun_anew(first.positions, first.lives, stop.lives)).positions
        ends = self._readable(stop)
        work, lost = planner.ranges(begin, ends, self._bounds)
        self._losses.report(lost)
        self._losses.count({key: begin.get(key, 0) for key in ends}, self._bounds)
        pieces = planner.tasks(
            work,
            cores=os.cpu_count() or 1,
            partitions_min=self._options.min_partitions,
            records_max=self._options.max_records_per_partition,
        )
        short_cuts = watch.short_cuts
        return [RangePartition(piece, watch.addresses, short_cuts, turn) for turn, piece in enumerate(pieces)]

    def _readable(self, stop: StreamOffset) -> Positions:
        """The ends of a planned batch, without those of queues that are others by now, if that is allowed."""
        if stop.positions is self._planned:
            return stop.positions
        self._check_filters(stop)
        changed = begun_anew(stop.positions, stop.lives, self._connected().lives(stop.positions))
        self._losses.report_anew(changed, stop.positions)
        return {key: end for key, end in stop.positions.items() if key not in changed} if changed else stop.positions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema, self._row_filter, self._options, self._stage)

    def commit(self, end: dict[str, Any]) -> None:
        """Report progress to the broker's consumer group, if one is set; the checkpoint does not depend on it."""
        if self._options.consumer_group is None:
            return
        try:
            commit_progress(self._options.consumer_group, self._memory.from_json(end).positions, self._connected())
        except (BrokerUnreachable, BrokerRefused) as failure:
            LOG.warning("progress of group %s was not reported: %s", self._options.consumer_group, failure)

    def stop(self) -> None:
        """End the source; when Spark has just closed the pipe to this process, without a traceback about that."""
        if isinstance(sys.exc_info()[1], EOFError | OSError):
            os._exit(0)

    def _connected(self) -> BoundsWatch:
        if self._watch is None:
            self._watch = BoundsWatch(self._options, self._selection)
        return self._watch

    def _limit(self, begin: Positions) -> Positions | None:
        """Where a bounded run ends or a replay stands; None for a live stream."""
        if self._cap is not None or self._replay is None:
            return self._cap
        return self._replay.cap(begin, self._bounds, self._connected())

    def _wait_ms(self, begin: Positions) -> int:
        """How long to let the broker hold the question: not at all if rows are known to wait, or the run is bounded."""
        if self._cap is not None or not self._options.long_poll_ms:
            return 0
        if all(queue.max <= begin.get(key, 0) for key, queue in self._bounds.items()):
            # With several brokers, which are asked one after the other, messages of the last would wait for the first.
            is_idle = self._pace.is_idle and len(self._connected().present) == 1
            longer = min(IDLE_POLL_MS, self._options.pull_timeout_ms // 2) if is_idle else 0
            return max(self._options.long_poll_ms, longer)
        return min(self._options.long_poll_ms, self._delay_ms(begin))

    def _delay_ms(self, begin: Positions) -> int:
        """How long what waits is held back for minOffsetsPerTrigger; a bounded run holds nothing back."""
        if self._cap is not None or self._options.min_offsets_per_trigger is None:
            return 0
        return planner.remaining_delay_ms(
            total_behind(begin, {key: bounds.max for key, bounds in self._bounds.items()}, self._bounds),
            self._options.min_offsets_per_trigger,
            self._pace.since_batch_ms,
            self._options.max_trigger_delay_ms,
        )

    def _rows_max(self, begin: Positions, ends: Positions, limit: ReadLimit) -> int | None:
        """Return the number of rows the next batch may have; None for as many as there are."""
        if isinstance(limit, ReadAllAvailable):
            return None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = self._options.max_bytes_per_trigger
        if bytes_max is None:
            return rows
        work, _ = planner.ranges(begin, ends, self._bounds)
        mean = mean_record_bytes(work, self._connected().masters)
        by_bytes = max(1, int(bytes_max / mean)) if mean else None
        return min((one for one in (rows, by_bytes) if one is not None), default=None)

    def _check_brokers(self, positions: Positions) -> None:
        """Raise BrokerUnreachable when a broker is not there whose queues are read: it is away, they still exist."""
        absent = {key.broker for key in positions} - self._connected().present
        if absent and self._options.fail_on_data_loss:
            raise BrokerUnreachable(f"no name server knows a master of {', '.join(sorted(absent))}")

    def _lacks(self, positions: Positions) -> bool:
        """Whether some position lies beyond the bounds last seen."""
        known = self._bounds
        return any((bounds := known.get(key)) is None or bounds.max < position for key, position in positions.items())

    def _within(self, start: Positions) -> dict[QueueKey, int]:
        """Return positions moved into what exists (only reached when losses are allowed)."""
        return {
            key: min(max(position, self._bounds[key].min), self._bounds[key].max) for key, position in start.items()
        }
