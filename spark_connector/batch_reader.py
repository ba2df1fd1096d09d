"""`spark.read.format("rocketmq")`: one bounded read between two points, decided once on the driver.

Invariant: the ends are taken when the plan is made; what is stored later is not part of the DataFrame, however long
it is used. Thread rule: `partitions` in a driver-side process, `read` in the workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector import planner
from spark_connector.brokers import BoundsWatch
from spark_connector.errors import OptionError
from spark_connector.fetch import report_losses
from spark_connector.offsets import QueueKey
from spark_connector.options import ReadOptions
from spark_connector.selection import Bounds, check_named_queues, missing_topics, select
from spark_connector.task import RangePartition, check_schema, read_task
from spark_connector.values import EARLIEST, LATEST, StartingPoint

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RocketMQBatchReader(DataSourceReader):
    """Plans and reads a bounded range of every selected queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        check_schema(schema)
        self._schema = schema
        self._options = options
        self._selection = select(options)

    def partitions(self) -> Sequence[InputPartition]:
        """Decide the range of every queue and cut the whole into tasks."""
        options = self._options
        watch = BoundsWatch(options, self._selection)
        bounds = watch.read(at_ms=options.starting_timestamp)
        missing = missing_topics(self._selection, bounds)
        if missing and options.topic:
            raise OptionError(
                f"option 'topic': no broker has {', '.join(map(repr, missing))}; `lightmq topics` lists them"
            )
        start = point_positions(
            options.starting_offsets, EARLIEST, bounds, by_time=options.starting_timestamp is not None
        )
        if options.ending_timestamp is not None:
            end = point_positions(None, LATEST, watch.read(at_ms=options.ending_timestamp), by_time=True)
        else:
            end = point_positions(options.ending_offsets, LATEST, bounds, unnamed=LATEST)
        work, lost = planner.ranges(start, end, bounds)
        report_losses(
            list(dict.fromkeys([*planner.losses(start, bounds), *planner.losses(end, bounds), *lost])), options
        )
        pieces = planner.tasks(
            work,
            cores=os.cpu_count() or 1,
            partitions_min=options.min_partitions,
            records_max=options.max_records_per_partition,
        )
        return [RangePartition(piece, watch.addresses, watch.readers) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_task(partition, self._schema, self._selection.row_filters, self._options)


def point_positions(
    point: StartingPoint | None,
    default: int,
    bounds: Mapping[QueueKey, Bounds],
    *,
    by_time: bool = False,
    unnamed: int | None = None,
) -> dict[QueueKey, int]:
    """Return the numbers behind a point given by options, checking the queues it names; `unnamed` serves the others."""
    wanted = point or StartingPoint(default, {})
    if wanted.named and not by_time:
        check_named_queues(wanted.named, bounds)
        if unnamed is not None:
            wanted = wanted._replace(default=unnamed)
    return planner.resolve(wanted, bounds, by_time=by_time)
