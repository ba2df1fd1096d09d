"""`df.write` and `df.writeStream.format("rocketmq")`: tasks stage rows, the driver commits them in one step.

    streams      a batch is named by the query's id (kept in its checkpoint), or `sinkId`, and the batch id: Spark
                 repeats both, so a batch that the broker already has is compared with it and not sent again
    batch write  is named by `txnAppId` and `txnVersion`, which the caller repeats, and then treated likewise; without
                 them by a name made for this one write: a second write of the same rows writes them again

Invariant: with delivery=exactly-once nothing is visible before `commit`, and after it exactly the rows of the attempts
Spark counted; with at-least-once each row is sent as it comes. Where the write may go is asked of the brokers while it
is planned, and nothing is changed by asking. What a broker refuses as too large is named by column and row, found with
one look at the lengths of a batch. Thread rule: `write` in the workers, one task each, all else in a process of the
driver's side.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from remoting.protocol.bodies.sink_body import BatchDigest, StageHandle
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers import KnownGroups, find_groups, find_masters
from spark_connector.errors import BrokerRefused, OptionError, phrase
from spark_connector.options.read_write import WriteOptions
from spark_connector.worker import Clock, begin_task, wall_ms
from spark_connector.writing.columns import SinkColumns, sink_columns
from spark_connector.writing.replays import BATCH_KIND, SKIP, Replayed, check_behind, total

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

    from spark_connector.writing.partitioner import Partitioner
    from spark_connector.writing.row_encoder import EncodedRows
    from spark_connector.writing.sink import AttemptName


def check_allowed(sink: str | None, options: WriteOptions) -> None:
    """Raise BrokerRefused while the write is planned when it may not go where it is meant to go.

    That is known for a topic that an option names and for the sink's own name; topics of a column are seen with their
    rows. Also raises BrokerUnreachable when no broker answers.
    """
    fields = {"topic": options.mqtt_topic or options.topic or ""}
    if sink is not None and options.delivery != "at-least-once":
        fields["sink"] = sink
    asked = {name: value for name, value in fields.items() if value}
    for master in find_masters(options).values():
        if not asked:
            return
        reply = master.ask(Command(RequestCode.CHECK_PUBLISH, fields=dict(asked)), refusal_is_error=False)
        if reply.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # an older broker refuses in the tasks
            master.check(reply)


WHERE = ("key", "mqttTopic", "topic")
"""Parts of a row that identify it."""
REFUSALS = (("body of", "body"), ("bytes of properties", "properties"))
"""Words of a refusal, and the part of a row that they are about."""


@dataclass(slots=True)
class Largest:
    """One part of the rows: the most bytes of it so far, and the row they are in."""

    size: int = -1
    row: str = ""


class LargestRow:
    """The largest body and the largest properties seen so far and where they were to go."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        """`columns`: what the user calls the parts of a row."""
        self._columns = {**columns, "properties": columns.get("headers", columns.get("properties", "properties"))}
        self._found = {part: Largest() for _, part in REFUSALS}

    def note(self, parts: Mapping[str, pa.Array]) -> None:
        """Take note of a batch's largest row."""
        import pyarrow.compute as pc

        self._note("body", pc.fill_null(pc.binary_length(parts["body"]), 0), parts)
        if "properties" in parts:
            self._note("properties", _sizes(parts["properties"]), parts)

    def _note(self, part: str, lengths: pa.Array, parts: Mapping[str, pa.Array]) -> None:
        import pyarrow.compute as pc

        size, known = pc.max(lengths).as_py() or 0, self._found[part]
        if size <= known.size:
            return
        at = pc.index(lengths, size).as_py()
        identity = [
            f"{name} {_text(parts[name][at].as_py())!r}" for name in WHERE if name in parts and parts[name][at].is_valid
        ]
        known.size, known.row = size, ", ".join(identity)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Raise OptionError naming column and row where a broker refuses a message as too large."""
        try:
            yield
        except BrokerRefused as refusal:
            part = next((part for words, part in REFUSALS if words in str(refusal)), None)
            if refusal.code != ResponseCode.MESSAGE_ILLEGAL or part is None:
                raise
            found = self._found[part]
            raise OptionError(
                f"column {self._columns[part]!r} holds {found.size} bytes in the row with {found.row}: "
                f"{phrase(refusal)}"
            ) from refusal


def _sizes(column: pa.MapArray) -> pa.Array:
    """The bytes of each row's keys and values."""
    import numpy as np
    import pyarrow.compute as pc

    from spark_connector.columns.layout import numbers

    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    pairs = pc.add(pc.fill_null(pc.binary_length(column.keys), 0), pc.fill_null(pc.binary_length(column.items), 0))
    ends = np.concatenate([[0], np.cumsum(pairs.to_numpy(zero_copy_only=False), dtype=np.int64)])
    return numbers(ends[edges[1:]] - ends[edges[:-1]])


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


ATTEMPT_BITS = 48
"""Size of the random number that distinguishes two runs of the same task."""
QUERY_ID_PROPERTY = "sql.streaming.queryId"
RUN_ID_PROPERTY = "spark.jobGroup.id"
"""Spark runs the jobs of a stream as a group that is named by the run of the query."""
BATCH_ID_PROPERTY = "streaming.sql.batchId"
CHECKED_MAX = 1_000
"""Sinks remembered as allowed."""
_CHECKED: dict[tuple[str | None, WriteOptions], None] = {}
"""Writes that brokers have allowed in this process; the oldest is forgotten first."""


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task leaves for the driver: how many rows are staged at each broker group, and under which name."""

    sink: str
    batch: int
    partition: int
    attempt: int
    counts: dict[str, int] = field(default_factory=dict)
    is_replay: bool = False
    """The batch was decided before; the task sent nothing."""
    digest: BatchDigest | None = None
    """What its rows were, staged or not; None where it was not made."""
    run: str = ""
    """The run of the query, of a stream."""

    @property
    def count(self) -> int:
        """Rows staged in all."""
        return sum(self.counts.values())


class RocketMQBatchWriter(DataSourceArrowWriter):
    """A batch write: all of its rows or none.

    With `txnAppId` and `txnVersion` a write is passed over if its version is the last one of this id and its rows are
    the same; with other rows, and with a lower version, it is refused.
    """

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a log cannot be overwritten: use .mode('append')")
        if options.sink_id is not None:
            raise OptionError(
                "option 'sinkId' is for streams, and this is a batch write: leave it out. The options 'txnAppId' and "
                "'txnVersion' make a batch write repeatable"
            )
        self._options = options
        self._columns = _columns(schema, options)
        # Pickled into every task and used again by commit: one name for the whole job.
        self._sink = options.txn_app_id or f"batch-{uuid.uuid4()}"
        self._batch = options.txn_version or 0
        _check_planned(self._sink, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task."""
        return write_task(iterator, self._columns, self._options, self._sink, self._batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible."""
        groups = commit_job(messages, self._options)
        if groups and self._options.txn_app_id is None:
            end_job(groups, self._sink, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        abort_job(messages, self._sink, self._batch, self._options)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream: tasks stage each batch, the driver commits it under the query's id."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:  # noqa: ARG002
        # `overwrite` is complete mode: as with Kafka's sink every batch's whole result is appended.
        if options.txn_app_id is not None:
            raise OptionError("the options 'txnAppId' and 'txnVersion' are for batch writes; a stream has its own ids")
        self._options = options
        self._columns = _columns(schema, options)
        _check_planned(options.sink_id, options)
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
                "this Spark does not pass tasks the query and batch they belong to; version 4.2 or newer does"
            )
        return write_task(iterator, self._columns, self._options, sink, int(batch), is_stream=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Make the rows of all tasks of the batch visible."""
        commit_job(messages, self._options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Drop what was staged; without any message and sinkId the name is unknown, then it expires at the broker."""
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

    begin_task()
    from spark_connector.brokers import patiently
    from spark_connector.writing.partitioner import Partitioner
    from spark_connector.writing.sink import AttemptName, sink_home

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    query, run = _query_of(context)
    attempt = AttemptName(sink, batch, partition, secrets.randbits(ATTEMPT_BITS))
    left = StagedRows(sink, batch, partition, attempt.attempt, run=run if is_stream or query else "")
    filled = (one for one in iterator if one.num_rows)
    first = next(filled, None)
    rows = TaskRows(filled if first is None else chain([first], filled), columns, options, query)
    if first is None:
        left.digest = rows.digest
        return left
    if options.delivery == "at-least-once":
        groups = patiently(lambda: find_groups(options), options)
        home_group = next(iter(groups.masters))
        partitioner = Partitioner(groups, home_group, attempt.attempt, options, queue_column=columns.queue_column)
        rows.send(partitioner, None)
        return left
    home = patiently(lambda: sink_home(sink, options), options)
    if home.last_batch >= batch:
        check_behind(Replayed(sink, batch, None, left.run or query), home.last_batch, options)
        left.is_replay = True
        if home.digest is not None and options.replay_mismatch != SKIP:
            rows.pass_over()
            left.digest = rows.digest
        return left
    groups = KnownGroups(dict(home.brokers), mqtt=home.mqtt)
    partitioner = Partitioner(groups, home.group, attempt.attempt, options, queue_column=columns.queue_column)
    left.counts = rows.send(partitioner, attempt)
    left.digest = rows.digest
    return left


def _query_of(context: TaskContext | None) -> tuple[str, str]:
    """(id of the query, its run) that a task belongs to, empty where it belongs to none."""
    if context is None:
        return "", ""
    return context.getLocalProperty(QUERY_ID_PROPERTY) or "", context.getLocalProperty(RUN_ID_PROPERTY) or ""


class TaskRows:
    """The rows of one task on their way to the brokers, and what they are."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, query: str
    ) -> None:
        self._batches = batches
        self._columns = columns
        self._options = options
        self._query = query
        self._digests: list[BatchDigest] = []

    @property
    def digest(self) -> BatchDigest | None:
        """What the rows are that were sent or passed over; None where nobody will compare them."""
        return total(self._digests, self._query) if self._is_digested else None

    @property
    def _is_digested(self) -> bool:
        return self._options.delivery == "exactly-once" and self._options.replay_mismatch != SKIP

    def pass_over(self) -> None:
        """Look at all rows and send none."""
        for batch in self._batches:
            picked = self._columns.pick(batch)
            encoded = encoded_rows(picked, batch.num_rows, self._options, labels=self._columns.parts)
            self._note(picked, batch.num_rows, encoded)

    def send(self, partitioner: Partitioner, attempt: AttemptName | None) -> dict[str, int]:
        """Encode and send the rows to the groups of their topics; rows by group."""
        from spark_connector.writing.sink import RowSender

        senders: dict[str, RowSender] = {}
        largest = LargestRow(self._columns.parts)
        with ExitStack() as open_senders, largest.named():
            for batch in self._batches:
                picked = self._columns.pick(batch)
                largest.note(picked)
                for group, own, count in partitioner.split(picked, batch.num_rows):
                    if group not in senders:
                        sender = RowSender(partitioner.masters[group], attempt, self._options)
                        senders[group] = open_senders.enter_context(sender)
                    encoded = encoded_rows(own, count, self._options, labels=self._columns.parts)
                    self._note(own, count, encoded)
                    senders[group].add(encoded)
            return {group: sender.finish() for group, sender in senders.items()}

    def _note(self, parts: Mapping[str, pa.Array], count: int, encoded: EncodedRows) -> None:
        if self._is_digested:
            self._digests.append(digest_rows(parts, count, self._options, encoded))


def digest_rows(parts: Mapping[str, pa.Array], rows: int, options: WriteOptions, encoded: EncodedRows) -> BatchDigest:
    """What some rows are, whatever their trace and, in a batch topic, the records they share; `encoded`: as sent."""
    from spark_connector.writing.digests import digest_of
    from spark_connector.writing.row_encoder import Defaults, compared_rows, encode_rows

    compared = {name: column for name, column in parts.items() if name != "traceparent"}
    if encoded.counts is not None:
        return digest_of(compared_rows(compared, rows), BATCH_KIND)
    if len(compared) < len(parts):
        encoded = encode_rows(compared, rows, Defaults(options.qos, options.retain, 0, options.delay_ms))
    return digest_of(encoded)


def encoded_rows(
    parts: Mapping[str, pa.Array],
    rows: int,
    options: WriteOptions,
    now_ms: Clock = wall_ms,
    *,
    labels: Mapping[str, str] | None = None,
) -> EncodedRows:
    """The append entries of some rows, born now; `labels`: the user's names of the parts."""
    from spark_connector.writing.row_encoder import Defaults, encode_rows

    if options.batch_codec is not None:
        from spark_connector.writing.row_encoder import encode_batches

        assert options.topic is not None, "checked when the options were read"
        return encode_batches(parts, options.topic, options.batch_codec, options.batch_rows, now_ms())
    return encode_rows(parts, rows, Defaults(options.qos, options.retain, now_ms(), options.delay_ms), labels)


def commit_job(messages: Sequence[WriterCommitMessage | None], options: WriteOptions) -> list[str]:
    """Commit what the tasks staged, or finish what was decided before; the broker groups concerned.

    Every step may be repeated.
    """
    from spark_connector.brokers import patiently
    from spark_connector.writing.sink import commit_everywhere, finish_batch, sink_home

    left = [message for message in messages if isinstance(message, StagedRows)]
    staged = [one for one in left if one.count or one.is_replay]
    if not staged:
        return []
    sink = staged[0].sink
    mine = Replayed(sink, staged[0].batch, total(one.digest for one in left), staged[0].run)
    handles: dict[str, list[StageHandle]] = {}
    for one in sorted(staged, key=lambda one: one.partition):
        for group, count in one.counts.items():
            if count:
                handles.setdefault(group, []).append(StageHandle(one.partition, one.attempt, count))
    if not handles:
        return patiently(lambda: finish_batch(sink_home(sink, options), mine, options), options)
    return patiently(lambda: commit_everywhere(mine, handles, options), options)


def end_job(groups: Sequence[str], sink: str, options: WriteOptions) -> None:
    """Forget the name of a job that has none of its own; it is committed, whether this reaches the brokers or not."""
    from spark_connector.errors import BrokerRefused, BrokerUnreachable
    from spark_connector.writing.sink import forget_sink

    with suppress(BrokerUnreachable, BrokerRefused):
        for group, master in find_masters(options).items():
            if group in groups:
                forget_sink(master, sink)


def abort_job(messages: Sequence[WriterCommitMessage | None], sink: str, batch: int, options: WriteOptions) -> None:
    """Drop what a failed job staged; a broker that cannot be reached lets it expire."""
    from spark_connector.errors import BrokerUnreachable
    from spark_connector.writing.sink import abort_batch

    if options.delivery == "at-least-once":
        return
    staged = {group for message in messages if isinstance(message, StagedRows) for group in message.counts}
    try:
        for group, master in find_masters(options).items():
            if not staged or group in staged:
                abort_batch(master, sink, batch)
    except BrokerUnreachable:
        return


def _columns(schema: StructType, options: WriteOptions) -> SinkColumns:
    return sink_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)


def _check_planned(sink: str | None, options: WriteOptions) -> None:
    """Fail while the write is planned when no broker answers or it is not allowed; later an outage is waited out.

    A stream is planned with every batch in the same process: it asks once.
    """

    question = (sink, options)
    if question not in _CHECKED:
        check_allowed(sink, options)
        while len(_CHECKED) >= CHECKED_MAX:
            _CHECKED.pop(next(iter(_CHECKED)))
        _CHECKED[question] = None
