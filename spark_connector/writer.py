"""`df.write` and `df.writeStream.format("rocketmq")`: tasks stage rows, the driver commits the batch.

A stream's batch is named by the query's id (kept in its checkpoint) and the batch id, both of which a replay repeats;
so a batch that the broker already has is not even sent again. Invariant: with delivery=exactly-once nothing is
visible before `commit`, and after it exactly the rows of the attempts Spark counted. Thread rule: `write` in the
workers, `commit` and `abort` in a driver-side process.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from remoting.protocol.sink_body import StageHandle
from spark_connector.clock import Clock, wall_ms
from spark_connector.connections import Address
from spark_connector.errors import OptionError
from spark_connector.options import WriteOptions
from spark_connector.sink_columns import SinkColumns, sink_columns
from spark_connector.worker import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_connector.entries import EncodedRows

ATTEMPT_BITS = 48
"""Size of the random number that tells two runs of the same task apart."""
QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
_REACHED: set[tuple[Address, ...]] = set()
"""Name servers that have answered this process."""


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task leaves for the driver: where its rows are staged and how many there are."""

    sink: str
    batch: int
    partition: int
    attempt: int
    count: int
    address: Address | None


class RocketMQBatchWriter(DataSourceArrowWriter):
    """A batch write; with `txnAppId` and `txnVersion` a repeated write is skipped."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a log cannot be overwritten: use .mode('append')")
        self._options = options
        self._columns = _columns(schema, options)
        _check_reachable(options)
        # Pickled into every task and used again by commit: one name for the whole job.
        self._sink = options.txn_app_id or f"batch-{uuid.uuid4()}"
        self._batch = options.txn_version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_task(iterator, self._columns, self._options, self._sink, self._batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible."""
        address = commit_job(messages, self._options)
        if address is not None and self._options.txn_app_id is None:
            end_job(address, self._sink, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        abort_job(messages, self._sink, self._batch, self._options)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """A stream's sink."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a log cannot be overwritten: use .outputMode('append')")
        if options.txn_app_id is not None:
            raise OptionError("the options 'txnAppId' and 'txnVersion' are for batch writes; a stream has its own ids")
        self._options = options
        self._columns = _columns(schema, options)
        _check_reachable(options)
        # Spark plans every batch in the same process: its garbage collection is worth the same care as a worker's.
        begin_task()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task of the batch that Spark names in the task's properties."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "write() runs inside a task"
        sink = self._options.sink_id or context.getLocalProperty(QUERY_ID_PROPERTY)
        batch = context.getLocalProperty(BATCH_ID_PROPERTY)
        if sink is None or batch is None:
            raise OptionError(
                "this Spark does not tell tasks the query and batch they belong to; version 4.2 or newer does"
            )
        return write_task(iterator, self._columns, self._options, sink, int(batch), is_stream=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Make the rows of all tasks of the batch visible."""
        commit_job(messages, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Drop what was staged; without any message and sinkId nobody knows the name, then it expires at the broker."""
        named = next((message.sink for message in messages if isinstance(message, StagedRows)), self._options.sink_id)
        if named is not None:
            abort_job(messages, named, batchId, self._options)


def write_task(
    iterator: Iterator[pa.RecordBatch],
    columns: SinkColumns,
    options: WriteOptions,
    sink: str,
    batch: int,
    *,
    is_stream: bool = False,
) -> StagedRows:
    """Stage (or append) the rows of one task; nothing is sent of a batch that was committed before."""
    from pyspark import TaskContext

    from spark_connector.sink import AttemptName, check_replay, first_broker, send_rows, sink_home

    begin_task()
    from spark_connector.outage import patiently

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    attempt = AttemptName(sink, batch, partition, secrets.randbits(ATTEMPT_BITS))
    nothing = StagedRows(sink, batch, partition, attempt.attempt, 0, None)
    filled = (one for one in iterator if one.num_rows)
    first = next(filled, None)
    if first is None:
        return nothing
    rows = encoded(chain([first], filled), columns, options)
    if options.delivery == "at-least-once":
        send_rows(patiently(lambda: first_broker(options), options), rows, None, options)
        return nothing
    home = patiently(lambda: sink_home(sink, options), options)
    if home.last_batch >= batch:
        if is_stream:
            check_replay(sink, batch, home.last_batch)
        return nothing
    count = send_rows(home.address, rows, attempt, options)
    return StagedRows(sink, batch, partition, attempt.attempt, count, home.address)


def encoded(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, now_ms: Clock = wall_ms
) -> Iterator[EncodedRows]:
    """Yield the append entries of each batch, born when it is encoded."""
    from spark_connector.entries import Defaults, encode_rows

    if options.batch_codec is not None:
        from spark_connector.batch_entries import encode_batches

        assert options.topic is not None, "checked when the options were read"
        for batch in batches:
            parts = columns.pick(batch)
            yield encode_batches(parts, options.topic, options.batch_codec, options.batch_rows, now_ms())
        return
    for batch in batches:
        defaults = Defaults(options.qos, options.retain, now_ms(), options.delay_ms)
        yield encode_rows(columns.pick(batch), batch.num_rows, defaults)


def commit_job(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> Address | None:
    """Commit what the tasks staged, in one request that may be repeated; where, None if nothing was staged."""
    from spark_connector.errors import BrokerUnreachable
    from spark_connector.outage import patiently
    from spark_connector.sink import commit_batch, sink_home

    staged = [message for message in messages if isinstance(message, StagedRows) and message.count]
    if not staged:
        return None
    handles = [
        StageHandle(one.partition, one.attempt, one.count) for one in sorted(staged, key=lambda one: one.partition)
    ]
    sink, batch = staged[0].sink, staged[0].batch
    addresses = {one.address for one in staged if one.address is not None}
    if len(addresses) > 1:
        raise BrokerUnreachable(
            f"batch {batch} of sink {sink!r} was staged at {len(addresses)} brokers, because another one joined or "
            "took over meanwhile: repeat it"
        )
    (address,) = addresses

    def commit() -> Address:
        try:
            commit_batch(address, sink, batch, handles, options)
        except BrokerUnreachable:
            # Its master may have moved to another address with everything that was staged.
            moved = sink_home(sink, options).address
            if moved == address:
                raise
            commit_batch(moved, sink, batch, handles, options)
            return moved
        return address

    return patiently(commit, options)


def end_job(address: Address, sink: str, options: WriteOptions) -> None:
    """Forget the name of a job that has none of its own; it is committed, whether the broker hears this or not."""
    from spark_connector.errors import BrokerRefused, BrokerUnreachable
    from spark_connector.sink import forget_sink

    with suppress(BrokerUnreachable, BrokerRefused):
        forget_sink(address, sink, options)


def abort_job(messages: Sequence[WriterCommitMessage | None], sink: str, batch: int, options: WriteOptions) -> None:
    """Drop what a failed job staged; a broker that cannot be reached lets it expire."""
    from spark_connector.brokers import find_brokers
    from spark_connector.errors import BrokerUnreachable
    from spark_connector.sink import abort_batch

    if options.delivery == "at-least-once":
        return
    staged = {message.address for message in messages if isinstance(message, StagedRows) and message.address}
    try:
        for address in staged or find_brokers(options).values():
            abort_batch(address, sink, batch, options)
    except BrokerUnreachable:
        return


def _columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    return sink_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)


def _check_reachable(options: WriteOptions) -> None:
    """Fail while the write is planned when nobody answers at all; later a broker may be away for a while."""
    from spark_connector.brokers import find_brokers

    if options.name_server not in _REACHED:
        find_brokers(options)
        _REACHED.add(options.name_server)
