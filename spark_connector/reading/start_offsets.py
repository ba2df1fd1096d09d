"""Where a read begins and ends: what the options say, turned into a position in every queue.

A time wins over offsets, one time for all over times by queue, as in Kafka's source; a queue nobody named gets what
the less precise option says. Invariant: a queue that is named and does not exist is an error, never passed over.
Thread rule: the driver's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_connector.errors import OptionError
from spark_connector.options.parsers import QueueName, StartingPoint, TimePoint
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading import planner
from spark_connector.reading.selection import Bounds, Selection, check_named_queues, light_key

TIMES_MAX = 1_000
"""Distinct times of one option: each is a question to every broker."""

AtTime = Callable[[int], Mapping[QueueKey, Bounds]]
"""Bounds of all queues with the offset that belongs to a time (ms since 1970)."""


def starting_positions(
    options: ReadOptions, selection: Selection, bounds: Mapping[QueueKey, Bounds], at_time: AtTime, default: int
) -> dict[QueueKey, int]:
    """Where every queue begins; `default` (EARLIEST or LATEST) where the options say nothing."""
    found = _by_offsets(options.starting_offsets, selection, bounds, default)
    times = _time_point(options.starting_timestamp, options.starting_offsets_by_timestamp)
    if times is None:
        return found
    timed = _by_time(_named_as_queues(times, selection), bounds, at_time, "startingOffsetsByTimestamp")
    if options.starting_offsets_by_timestamp_strategy == "error":
        for key, position in sorted(timed.items()):
            if position >= bounds[key].max > bounds[key].min:  # an empty queue has nothing that could be missed
                raise OptionError(
                    f"option 'startingOffsetsByTimestamp': queue {key.topic}/{key.broker}/{key.queue} has no message "
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
    return found | _by_time(_named_as_queues(times, selection), bounds, at_time, "endingOffsetsByTimestamp")


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
    return planner.resolve(wanted, bounds)


def _named_as_queues(times: TimePoint, selection: Selection) -> TimePoint:
    return times._replace(named=_light_names(times.named, selection))


def _light_names(named: Mapping[QueueName, int], selection: Selection) -> dict[QueueName, int]:
    """MQTT topics that are read from their own queues may be named as themselves."""
    return {
        (name._replace(topic=light_key(name.topic, "").topic) if name.topic in selection.exact else name): value
        for name, value in named.items()
    }


def _by_time(times: TimePoint, bounds: Mapping[QueueKey, Bounds], at_time: AtTime, option: str) -> dict[QueueKey, int]:
    """Positions of the queues for which a time is given."""
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
        for key in keys:
            queue = answered.get(key, bounds[key])
            found[key] = queue.max if queue.at is None else min(queue.at, queue.max)
    return found
