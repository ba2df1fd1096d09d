"""One reading task: the ranges it was given, fetched and decoded into Arrow batches, in the executor; and samples.

Invariant: what a task yields depends only on its partition, so a repeated task yields the same rows. Thread rule:
runs in a Python worker of Spark, one task at a time.

The sample from which `inferSchema` finds the fields is the newest bodies of a selection, read on the driver. Invariant:
at most `inferSchemaRows` bodies of at most `SAMPLE_BYTES_MAX` are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from remoting.protocol.bodies.pull_body import RowFilter
from spark_connector.brokers import Address, MasterAddress, masters_at
from spark_connector.errors import BrokenRecord, DataLost
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import check_projection
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.fetch import RangeFetcher
from spark_connector.reading.selection import Bounds, row_filter, select
from spark_connector.worker import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_connector.decode.plan import DecodeStage


class RangePartition(InputPartition):
    """The ranges of one task, where their brokers are, and their reader processes where they have some."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        addresses: Mapping[str, MasterAddress],
        readers: Mapping[str, Address] | None = None,
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        brokers = {one.key.broker for one in ranges}
        self.addresses = {broker: address for broker, address in addresses.items() if broker in brokers}
        self.readers = {broker: address for broker, address in (readers or {}).items() if broker in brokers}


def read_task(
    partition: InputPartition,
    schema: StructType,
    row_filter: RowFilter,
    options: ReadOptions,
    stage: DecodeStage | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition; an empty DataFrame comes as a partition without ranges.

    With a stage the rows pass through it, which turns bodies into columns.
    """
    if not isinstance(partition, RangePartition):
        return
    from spark_connector.columns.arrow import arrow_schema
    from spark_connector.columns.batches import decode_range

    begin_task()
    wanted = arrow_schema(schema if stage is None else stage.source)
    masters = masters_at(partition.addresses, options)
    decoding = None if stage is None else stage.open(options, masters)
    fetcher = RangeFetcher(partition.ranges, masters, options, partition.readers, row_filter)
    for current, pulled in fetcher.pulls():
        try:
            for batch in decode_range(pulled, current, wanted, fetcher.filter_of(current)):
                if decoding is None:
                    yield batch
                else:
                    yield from decoding.apply(batch, current.key)
        except BrokenRecord:
            fetcher.report_damage(current, pulled)
            raise


def check_schema(schema: StructType, options: ReadOptions) -> DecodeStage | None:
    """Raise OptionError unless every column of a user-given schema is one of ours with its type.

    Returns what the tasks do with bodies, None where they do nothing.
    """
    if options.decode is not None:
        from spark_connector.decode.plan import plan_stage

        wanted, stage = plan_stage(schema, options, sample_bodies)
        for field, known in zip(schema.fields, wanted.fields, strict=True):
            field.name = known.name
        return stage
    names = check_projection(
        [(field.name, field.dataType.simpleString()) for field in schema.fields], kafka=options.schema == "kafka"
    )
    for field, name in zip(schema.fields, names, strict=True):
        field.name = name
    return None


SAMPLE_BYTES_MAX = 16 * 1024 * 1024
"""Body bytes of a sample; later bodies are ignored."""


def sample_bodies(options: ReadOptions) -> list[bytes]:
    """The newest bodies of the selection, about as many of every queue that has some."""
    selection = select(options)
    watch = BoundsWatch(options, selection)
    bounds = {key: one for key, one in watch.read().items() if one.max > one.min}
    ranges = newest(bounds, options.infer_schema_rows)
    if not ranges:
        return []
    from pyspark.sql import types

    from spark_connector.columns.arrow import arrow_schema
    from spark_connector.columns.batches import decode_range

    schema = arrow_schema(types.StructType([types.StructField("body", types.BinaryType())]))
    fetcher = RangeFetcher(ranges, watch.masters, options, row_filter=row_filter(selection, options))
    bodies: list[bytes] = []
    size = 0
    try:
        for current, pulled in fetcher.pulls():
            for batch in decode_range(pulled, current, schema, fetcher.filter_of(current)):
                bodies += [body or b"" for body in batch.column(0).to_pylist()]
                size += batch.nbytes
            if size > SAMPLE_BYTES_MAX:
                break
    except DataLost:
        # Retention took some of the messages meanwhile; the rest is as good a sample.
        pass
    return bodies


def newest(bounds: Mapping[QueueKey, Bounds], rows: int) -> list[QueueRange]:
    """Ranges at the ends of the queues, `rows` together (at least one each)."""
    left, ranges = rows, []
    by_size = sorted(bounds.items(), key=lambda item: (item[1].max - item[1].min, item[0]))
    for index, (key, one) in enumerate(by_size):
        share = max(1, left // (len(by_size) - index))
        taken = min(share, one.max - one.min)
        left = max(0, left - taken)
        ranges.append(QueueRange(key, one.id, one.max - taken, one.max))
        if not left:
            break
    return ranges
