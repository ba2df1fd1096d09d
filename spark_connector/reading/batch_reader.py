"""`spark.read.format("rocketmq")`: one bounded read between two points, decided once on the driver.

Invariant: the ends are taken when the plan is made; what is stored later is not part of the DataFrame, however long
it is used. Thread rule: `partitions` in a driver-side process, `read` in the workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_connector.options.parsers import EARLIEST, LATEST
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading import planner
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.fetch import report_losses
from spark_connector.reading.pushdown import Conditions, PushFilters, conditions_of
from spark_connector.reading.selection import check_partitions, check_present, row_filter, select
from spark_connector.reading.start_offsets import ending_positions, starting_positions
from spark_connector.reading.task import RangePartition, check_schema, read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class RocketMQBatchReader(DataSourceReader):
    """Plans and reads a bounded range of every selected queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._stage = check_schema(schema, options)
        self._schema = schema
        self._options = options
        self._selection = select(options)
        self._row_filter = row_filter(self._selection, options)
        self._pushed: list[Filter] = []
        self.pushFilters = PushFilters(self._pushed)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """Decide the range of every queue and cut the whole into tasks."""
        options, watch = self._options, BoundsWatch(self._options, self._selection)
        bounds = watch.read()
        check_present(self._selection, bounds)
        check_partitions(self._options, bounds)
        start = starting_positions(options, self._selection, bounds, lambda ms: watch.read(at_ms=ms), EARLIEST)
        end = ending_positions(options, self._selection, bounds, lambda ms: watch.read(at_ms=ms), LATEST)
        conditions = conditions_of(self._pushed)
        self._narrow_by_time(conditions, watch, start, end)
        work, lost = planner.ranges(start, end, bounds)
        report_losses(
            list(dict.fromkeys([*planner.losses(start, bounds), *planner.losses(end, bounds), *lost])), options
        )
        wanted = conditions.at_the_broker(self._row_filter)
        pieces = planner.tasks(
            [] if wanted is None else conditions.narrowed(work),
            cores=os.cpu_count() or 1,
            partitions_min=options.min_partitions,
            records_max=options.max_records_per_partition,
        )
        return [RangePartition(piece, watch.addresses, watch.readers) for piece in pieces]

    def _narrow_by_time(
        self, conditions: Conditions, watch: BoundsWatch, start: dict[QueueKey, int], end: dict[QueueKey, int]
    ) -> None:
        """Move both ends to what was stored in the time that is wanted: what lies outside never leaves the broker."""
        stored = conditions.stored_ms
        for moment, points, nearer in ((stored.low, start, max), (stored.high, end, min)):
            if moment is not None:
                answered = watch.read(at_ms=max(0, moment))
                for key in points:
                    at = answered[key].at if key in answered else None
                    points[key] = points[key] if at is None else nearer(points[key], at)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Whatever `partitions` notes on this object is not seen here: the tasks may have it as it was before.
        wanted = conditions_of(self._pushed).at_the_broker(self._row_filter)
        return read_task(partition, self._schema, wanted or self._row_filter, self._options, self._stage)
