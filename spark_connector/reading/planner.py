"""From positions to work: how far a batch goes, what it reads, and how the work is cut into tasks.

Invariant: an end never lies before its start; the ranges of one batch are exactly (start, end] of every queue, in
pieces that are disjoint and complete. Losses (records gone, a log that is shorter than what was read before) are
returned as sentences, the caller decides whether they are fatal. Pure.

Where a read begins and ends: the options, turned into a position in every queue.

A time wins over offsets, one time for all over times by queue, as in Kafka's source; a queue without a name gets what
the less precise option gives. Invariant: a queue that is named and does not exist is an error, never passed over.
Thread rule: the driver's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_connector.errors import OptionError
from spark_connector.options.option_table import EARLIEST, LATEST, QueueName, StartingPoint, TimePoint
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.offsets import Positions
from spark_connector.reading.selection import Bounds, Selection, check_named_queues, light_key

ROWS_PER_TASK = 20_000
"""A task is worth its 10 ms or so of overhead from about here."""


def resolve(point: StartingPoint, bounds: Mapping[QueueKey, Bounds]) -> dict[QueueKey, int]:
    """Return the numbers behind `earliest`, `latest` or given offsets."""
    found = {}
    for key, queue in bounds.items():
        anywhere = point.named.get(QueueName(key.topic, None, key.queue), point.default)
        wanted = point.named.get(QueueName(*key), anywhere)
        found[key] = {EARLIEST: queue.min, LATEST: queue.max}.get(wanted, wanted)
    return found


def losses(start: Positions, bounds: Mapping[QueueKey, Bounds]) -> list[str]:
    """Say for every queue of `start` what of it can no longer be read."""
    found = []
    lost = [
        (key, position)
        for key, position in start.items()
        if (queue := bounds.get(key)) is None or not queue.min <= position <= queue.max
    ]
    for key, position in sorted(lost):
        queue = bounds.get(key)
        if queue is None:
            found.append(f"queue {key} is gone; it was read up to {position}")
        elif position < queue.min:
            found.append(f"queue {key}: offsets {position} to {queue.min - 1} are gone, it begins at {queue.min} now")
        else:
            found.append(f"queue {key}: offset {position} is beyond the log's end {queue.max}, it may be another log")
    return found


def expired_ranges(start: Positions, bounds: Mapping[QueueKey, Bounds]) -> dict[QueueKey, tuple[int, int]]:
    """Return the offsets [first, end) behind `start` that have expired, of the queues that lost some."""
    return {
        key: (position, bounds[key].min)
        for key, position in start.items()
        if key in bounds and position < bounds[key].min
    }


def advance(
    start: Positions, bounds: Mapping[QueueKey, Bounds], *, rows_max: int | None = None, cap: Positions | None = None
) -> dict[QueueKey, int]:
    """Return how far the next batch goes: all there is, or shares of `rows_max` in proportion to what waits.

    Every queue that has something waiting gets at least one row, so none starves; `cap` ends an availableNow run.
    Queues of `start` that are gone keep their position.
    """
    ends = dict(start)
    waiting: dict[QueueKey, int] = {}
    for key, queue in bounds.items():
        position = ends.setdefault(key, 0)
        limit = queue.max if cap is None else min(queue.max, cap.get(key, 0))
        if limit > position:
            waiting[key] = max(0, limit - max(position, queue.min))
            ends[key] = limit
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return ends
    left = rows_max
    for key, rows in sorted(waiting.items(), key=lambda item: item[1]):
        if rows == 0:
            continue
        share = min(rows, max(1, left * rows // total))
        ends[key] = max(start.get(key, 0), bounds[key].min) + share
        left -= share
        total -= rows
    return ends


def remaining_delay_ms(waiting: int, rows_min: int | None, since_batch_ms: float | None, delay_ms: int) -> int:
    """How long a batch of `waiting` rows may still wait for `rows_min` of them; 0 when it is to be made now.

    `since_batch_ms` is None before the first batch, which shows at once that a query works.
    """
    if rows_min is None or waiting >= rows_min or since_batch_ms is None:
        return 0
    return max(0, math.ceil(delay_ms - since_batch_ms))


def ranges(start: Positions, end: Positions, bounds: Mapping[QueueKey, Bounds]) -> tuple[list[QueueRange], list[str]]:
    """Return what to read from `start` to `end`, and what of it is lost; a queue `start` does not know begins at 0."""
    found: list[QueueRange] = []
    lost: list[str] = []
    moved = [key for key, stop in end.items() if stop > start.get(key, 0)]
    for key in sorted(moved):
        begin, stop = start.get(key, 0), end[key]
        queue = bounds.get(key)
        lost += losses({key: begin}, bounds)
        if queue is None:
            continue
        if stop > queue.max:
            lost.append(f"queue {key}: offsets up to {stop - 1} were planned, the log ends at {queue.max}")
        begin, stop = max(begin, queue.min), min(stop, queue.max)
        if begin < stop:
            found.append(QueueRange(key, queue.id, begin, stop))
    return found, lost


def tasks(
    work: Sequence[QueueRange], *, cores: int, partitions_min: int | None = None, records_max: int | None = None
) -> list[list[QueueRange]]:
    """Cut the work into tasks of about equal size: small queues share a task, large ones are split.

    As many tasks as pay for themselves, at most `cores`, unless `partitions_min` or `records_max` per task ask for
    more.
    """
    rows = sum(one.rows for one in work)
    if rows == 0:
        return []
    wanted = min(-(-rows // ROWS_PER_TASK), cores)
    if partitions_min is not None:
        wanted = max(wanted, min(partitions_min, rows))
    if records_max is not None:
        wanted = max(wanted, -(-rows // records_max))
    size = -(-rows // wanted)
    if records_max is not None:
        size = min(size, records_max)
    cut: list[list[QueueRange]] = [[]]
    room = size
    for one in work:
        while one.rows:
            if room == 0:
                cut.append([])
                room = size
            piece = replace(one, end=min(one.end, one.start + room))
            cut[-1].append(piece)
            room -= piece.rows
            one = replace(one, start=piece.end)
    return cut


TIMES_MAX = 1_000
"""Distinct times of one option: each is a question to every broker."""

AtTime = Callable[[int], Mapping[QueueKey, Bounds]]
"""Bounds of all queues with the offset that belongs to a time (ms since 1970)."""


def starting_positions(
    options: ReadOptions, selection: Selection, bounds: Mapping[QueueKey, Bounds], at_time: AtTime, default: int
) -> dict[QueueKey, int]:
    """Where every queue begins; `default` (EARLIEST or LATEST) where the options give none."""
    found = _by_offsets(options.starting_offsets, selection, bounds, default)
    times = _time_point(options.starting_timestamp, options.starting_offsets_by_timestamp)
    if times is None:
        return found
    timed = _by_time(times, selection, bounds, at_time, "startingOffsetsByTimestamp")
    if options.starting_offsets_by_timestamp_strategy == "error":
        for key, position in sorted(timed.items()):
            if position >= bounds[key].max > bounds[key].min:  # an empty queue has nothing that could be missed
                raise OptionError(
                    f"option 'startingOffsetsByTimestamp': queue {key} has no message "
                    "at or after its time; 'startingOffsetsByTimestampStrategy' = latest begins at its end"
                )
    return found | timed


def ending_positions(
    options: ReadOptions, selection: Selection, bounds: Mapping[QueueKey, Bounds], at_time: AtTime, default: int
) -> dict[QueueKey, int]:
    """Where every queue ends (exclusive); queues not named by offsets end at `default`."""
    found = _by_offsets(options.ending_offsets, selection, bounds, default, unnamed=default)
    times = _time_point(options.ending_timestamp, options.ending_offsets_by_timestamp)
    if times is None:
        return found
    return found | _by_time(times, selection, bounds, at_time, "endingOffsetsByTimestamp")


def _time_point(for_all: int | None, by_queue: TimePoint | None) -> TimePoint | None:
    return TimePoint(for_all, {}) if for_all is not None else by_queue


def _by_offsets(
    point: StartingPoint | None,
    selection: Selection,
    bounds: Mapping[QueueKey, Bounds],
    default: int,
    *,
    unnamed: int | None = None,
) -> dict[QueueKey, int]:
    wanted = point or StartingPoint(default, {})
    if wanted.named:
        wanted = wanted._replace(named=_light_names(wanted.named, selection))
        check_named_queues(wanted.named, bounds)
        if unnamed is not None:
            wanted = wanted._replace(default=unnamed)
    return resolve(wanted, bounds)


def _light_names(named: Mapping[QueueName, int], selection: Selection) -> dict[QueueName, int]:
    """MQTT topics that are read from their own queues may be named as themselves."""
    return {
        (name._replace(topic=light_key(name.topic, "").topic) if name.topic in selection.exact else name): value
        for name, value in named.items()
    }


def _by_time(
    times: TimePoint, selection: Selection, bounds: Mapping[QueueKey, Bounds], at_time: AtTime, option: str
) -> dict[QueueKey, int]:
    """Positions of the queues for which a time is given."""
    times = times._replace(named=_light_names(times.named, selection))
    check_named_queues(times.named, bounds, f"option {option!r} names")
    wanted: dict[int, list[QueueKey]] = {}
    for key in bounds:
        moment = times.of(*key)
        if moment is not None:
            wanted.setdefault(moment, []).append(key)
    if len(wanted) > TIMES_MAX:
        raise OptionError(f"option {option!r} has {len(wanted)} different times, the limit is {TIMES_MAX}")
    found: dict[QueueKey, int] = {}
    for moment, keys in sorted(wanted.items()):
        answered = at_time(moment)
        found |= {key: answered.get(key, bounds[key]).reached for key in keys}
    return found
