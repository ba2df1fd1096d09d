"""The newest bodies of a selection: the sample from which `inferSchema` finds the fields.

Invariant: at most `inferSchemaRows` bodies of at most `SAMPLE_BYTES_MAX` are read. Thread rule: driver, one thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_connector.errors import DataLost
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.fetch import RangeFetcher
from spark_connector.reading.selection import Bounds, row_filter, select

SAMPLE_BYTES_MAX = 16 * 1024 * 1024
"""Body bytes of a sample; what comes after is not looked at."""


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
