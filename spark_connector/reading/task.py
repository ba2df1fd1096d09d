"""One reading task: the ranges it was given, fetched and decoded into Arrow batches, in the executor; and samples.

Invariant: what a task yields depends only on its partition, so a repeated task yields the same rows. Thread rule:
runs in a Python worker of Spark, one task at a time.

The sample from which `inferSchema` finds the fields is the newest bodies of a selection, read on the driver. Invariant:
at most `inferSchemaRows` bodies of at most `SAMPLE_BYTES_MAX` are read.

Pull ranges of records, the next one already on its way while the current one is decoded.

Invariant: pulls come in the order of the ranges, each offset once, without gaps unless the loss was allowed by
failOnDataLoss. A broken connection is made again and the pull repeated from the first offset that did not arrive,
for as long as `brokerWaitMs` allows.
Replicas and reader processes are asked where there are some (`TaskEndpoints`); only the broker can report a loss.
Thread rule: one task.

Where a task asks for its ranges: at replicas where the option `readFrom` says so, at the reader processes beside a
broker while they serve, else at the broker.

Both are short cuts, never an authority: whatever they cannot answer with the very records asked for (they have ended,
refuse, know less than the driver) is asked again at the next one, at last at the broker, whose word counts. A replica
is given `REPLICA_WAIT_MS` to learn that what the driver planned is confirmed. Invariant: a short cut is left for the
rest of the task after `FAILURES_MAX` lost connections or one unusable answer, so a task always ends. Thread rule: one
task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import InputPartition

from remoting import clock
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import (
    FROM_REPLICA_FIELD,
    STATUS_DAMAGED,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OFFSET_TOO_LARGE,
    STATUS_OFFSET_TOO_SMALL,
    STATUS_OK,
    PulledRange,
    RowFilter,
    decode_filtered_reply,
    decode_multi_pull_reply,
    decode_range_pull_reply,
    encode_filtered_pull,
    encode_multi_pull,
    encode_range_pull,
    encode_row_filter,
)
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import LMQ_PREFIX
from remoting.transport.failures import ConnectionLost
from spark_connector.brokers import (
    POOL,
    Address,
    GroupMaster,
    MasterAddress,
    check,
    masters_at,
    patiently,
    unreachable,
)
from spark_connector.errors import BrokenRecord, BrokerRefused, DataLost, GroupAbsent
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import check_projection
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.replicas import ShortCuts, order
from spark_connector.reading.selection import Bounds, row_filter, select
from spark_connector.worker import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_connector.decode.plan import DecodeStage


FAILURES_MAX = 2
"""Lost connections to readers of one broker before the task stays with the broker: one reader may die, not each."""
TIMEOUT_MS_MAX = 5_000
"""Longest wait for a reader; the broker gets the whole `pullTimeoutMs`."""


REPLICA_WAIT_MS = 2_000
"""How long a replica may take to show what was planned at its master; then the task reads at the master. It learns what
is confirmed at the latest with the next heartbeat of its master (`stream_heartbeat_ms`, 500)."""
REPLICA_PAUSE_S = 0.01
"""Pause before a replica is asked again."""


class NotAnswered(LightMQError):
    """A reader answered with something else than the records asked for."""


class TooFarBehind(NotAnswered):
    """A replica did not get in time what was planned; the others may be as late."""


class TaskEndpoints:
    """Where one task asks, by broker group."""

    def __init__(
        self, masters: Mapping[str, GroupMaster], short_cuts: ShortCuts, read_from: str = "master", turn: int = 0
    ) -> None:
        """`turn`: which task of its batch it is."""
        self.masters = masters
        self._readers = {broker: [(address, False)] for broker, address in short_cuts.readers.items()}
        for broker, replicas in short_cuts.replicas.items():
            found = order(read_from, replicas, masters[broker].address, turn)
            self._readers[broker] = [(address, True) for address in found] + self._readers.get(broker, [])
        self._failures: dict[str, int] = {}
        self._behind_since_s: float | None = None

    def of(self, broker: str) -> Address:
        """Where to ask for ranges of this broker now."""
        return self._readers[broker][0][0] if self.is_reader(broker) else self.masters[broker].address

    def is_reader(self, broker: str) -> bool:
        """Whether `of` names a short cut."""
        return bool(self._readers.get(broker))

    def is_replica(self, broker: str) -> bool:
        """Whether `of` names a replica."""
        return self.is_reader(broker) and self._readers[broker][0][1]

    def timeout_ms(self, broker: str, wanted_ms: int) -> int:
        """How long to wait there."""
        return min(wanted_ms, TIMEOUT_MS_MAX) if self.is_reader(broker) else wanted_ms

    def reader_failed(self, broker: str, failure: Exception) -> None:
        """Take in that a short cut of this broker failed; the same one may be asked again after a lost connection."""
        self._behind_since_s = None
        self._failures[broker] = self._failures.get(broker, 0) + 1
        if isinstance(failure, TooFarBehind):
            self._readers[broker] = [one for one in self._readers[broker] if not one[1]]
        elif not isinstance(failure, ConnectionLost) or self._failures[broker] >= FAILURES_MAX:
            del self._readers[broker][0]
        else:
            return
        self._failures[broker] = 0

    def wait_behind(self) -> None:
        """A replica does not have yet what was planned: pause, or raise TooFarBehind when it had its time."""
        now_s = clock.monotonic_s()
        if self._behind_since_s is None:
            self._behind_since_s = now_s
        if (now_s - self._behind_since_s) * 1000 >= REPLICA_WAIT_MS:
            raise TooFarBehind(f"the replica had not got what was planned within {REPLICA_WAIT_MS} ms")
        time.sleep(REPLICA_PAUSE_S)

    def goes_on(self) -> None:
        """Records arrived."""
        self._behind_since_s = None


NOT_THERE_YET = frozenset({STATUS_OK, STATUS_NO_SUCH_QUEUE, STATUS_OFFSET_TOO_LARGE})
"""What a replica answers that has not got so far."""
PULL_BYTES_MAX = 2 * 1024 * 1024
"""Raw record bytes asked for at once: large enough to hide the round trip, and small enough that neither side asks the
kernel for fresh memory each time, which cost the broker more than half of what a row of 8 MiB did."""

MEAN_SAMPLE_BYTES = 64 * 1024
"""Size of the sample by which maxBytesPerTrigger judges how large records are."""

RETRY_PAUSE_MS_MAX = 1_000
"""Longest pause between two attempts to reach a broker again."""
LIGHT = LMQ_PREFIX.decode()
LOG = logging.getLogger("lightmq.spark")


def without_topics(row_filter: RowFilter) -> RowFilter:
    """The same but for the topic filters."""
    return msgspec.structs.replace(row_filter, mqtt=())


class RangeFetcher:
    """Reads the ranges of one task from their brokers."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        masters: Mapping[str, GroupMaster],
        options: ReadOptions,
        short_cuts: ShortCuts | None = None,
        row_filter: RowFilter | None = None,
        turn: int = 0,
    ) -> None:
        """`turn`: which task of a batch it is."""
        self._filter = row_filter or RowFilter()
        self._encoded = {False: encode_row_filter(self._filter), True: encode_row_filter(without_topics(self._filter))}
        self._ranges = list(ranges)
        self._endpoints = TaskEndpoints(masters, short_cuts or ShortCuts(), options.read_from, turn)
        self._options = options
        self._at = 0
        self._offset = ranges[0].start if ranges else 0
        self._attempts = 0
        self._failing_since = 0.0

    def pulls(self) -> Iterator[tuple[QueueRange, PulledRange]]:
        """Yield (range, records) until every range is read; raises DataLost, BrokerUnreachable or BrokerRefused."""
        while self._at < len(self._ranges):
            broker = self._ranges[self._at].key.broker
            address, is_reader = self._endpoints.of(broker), self._endpoints.is_reader(broker)
            try:
                with ExitStack() as lent:
                    connection = self._lend(broker, lent)
                    address = self._endpoints.of(broker)
                    yield from self._pull_from(broker, address, connection, is_reader=is_reader)
            except (OSError, LightMQError) as failure:
                if is_reader and not isinstance(failure, DataLost):
                    self._leave_reader(broker, address, failure)
                elif isinstance(failure, DataLost | BrokenRecord) or (
                    isinstance(failure, BrokerRefused) and not failure.for_now
                ):
                    raise
                else:
                    self._recover(broker, address, failure)

    def report_damage(self, current: QueueRange, pulled: PulledRange) -> None:
        """Let the broker itself read what did not pass our checks: it notes damage and reports it from then on."""
        master, at = self._endpoints.masters[current.key.broker], pulled.first_offset
        try:
            while at < pulled.next_offset:
                body = encode_multi_pull([(current.queue_id, at, pulled.next_offset - at, PULL_BYTES_MAX)])
                (answer,) = decode_multi_pull_reply(master.ask(Command(RequestCode.MULTI_PULL, body=body)).body)
                if answer.status != STATUS_OK or answer.next_offset <= at:
                    return
                at = answer.next_offset
        except LightMQError as failure:
            LOG.warning("a damaged record could not be reported to %s:%d: %s", *master.address, failure)

    def _pull_from(
        self, broker: str, address: Address, connection: BlockingConnection, *, is_reader: bool
    ) -> Iterator[tuple[QueueRange, PulledRange]]:
        """Pull everything the broker (or a reader) at one address has for us, one request ahead."""
        sent: int | None = self._send(connection)
        while sent is not None:
            current = self._ranges[self._at]
            reply = connection.receive(sent)
            body = (check(reply, address) if is_reader else self._endpoints.masters[broker].check(reply)).body
            pulled = decode_range_pull_reply(body) if self.filter_of(current) is None else decode_filtered_reply(body)
            if is_reader:
                if self._endpoints.is_replica(broker) and self._is_behind(pulled):
                    self._endpoints.wait_behind()
                    sent = self._send(connection)
                    continue
                self._check_reader(pulled)
                self._endpoints.goes_on()
            self._advance(current, pulled)
            self._attempts = 0
            failure: Exception | None = None
            try:
                # The next question leaves before the answer is decoded, so broker and task work at the same time.
                sent = self._send(connection) if self._is_at(address) else None
            except (OSError, LightMQError) as caught:
                failure = caught
            if pulled.count:
                yield current, pulled
            if failure is not None:
                raise failure

    def _send(self, connection: BlockingConnection) -> int:
        current = self._ranges[self._at]
        fields = {FROM_REPLICA_FIELD: "true"} if self._endpoints.is_replica(current.key.broker) else {}
        if self.filter_of(current) is None:
            body = encode_range_pull(current.queue_id, self._offset, current.end, PULL_BYTES_MAX)
            return connection.send(Command(RequestCode.RANGE_PULL, fields=fields, body=body))
        wanted = self._encoded[current.key.topic.startswith(LIGHT)]
        body = encode_filtered_pull(current.queue_id, self._offset, current.end, PULL_BYTES_MAX, wanted)
        return connection.send(Command(RequestCode.FILTERED_PULL, fields=fields, body=body))

    def filter_of(self, current: QueueRange) -> RowFilter | None:
        """What the records of a range have passed at the broker; None when every record is sent.

        The light queue of an exact topic holds nothing else: topic filters are for the queues of whole parent topics.
        """
        wanted = without_topics(self._filter) if current.key.topic.startswith(LIGHT) else self._filter
        return wanted or None

    def _is_at(self, address: Address) -> bool:
        """Whether there is more to read and it lies at this address."""
        return self._at < len(self._ranges) and self._endpoints.of(self._ranges[self._at].key.broker) == address

    def _is_behind(self, pulled: PulledRange) -> bool:
        """Whether a replica does not know yet that the offset asked for is confirmed, or does not have its queue."""
        return pulled.status in NOT_THERE_YET and pulled.max_offset <= self._offset

    def _check_reader(self, pulled: PulledRange) -> None:
        """Raise NotAnswered unless a reader sent what was asked for; only the broker reports a loss."""
        if (pulled.status, pulled.first_offset) != (STATUS_OK, self._offset) or pulled.next_offset <= self._offset:
            raise NotAnswered(f"a reader has no offset {self._offset} (status {pulled.status})")

    def _leave_reader(self, broker: str, address: Address, failure: Exception) -> None:
        """Continue without this reader, from the first offset that did not arrive."""
        POOL.forget(address)
        self._endpoints.reader_failed(broker, failure)
        LOG.warning("reader at %s:%d failed (%s), going on", *address, failure)

    def _advance(self, current: QueueRange, pulled: PulledRange) -> None:
        """Move to the first offset that has not arrived, checking that nothing in between is missing."""
        where = f"queue {current.key}"
        if pulled.status == STATUS_OK and pulled.first_offset == self._offset:
            if pulled.next_offset <= self._offset:
                self._lose(f"{where}: offset {self._offset} was planned, the log now ends at {pulled.max_offset}")
                self._next_range()
                return
        elif pulled.status == STATUS_DAMAGED:
            behind = min(pulled.first_offset, current.end)
            self._lose(f"{where}: offsets {self._offset} to {behind - 1} cannot be read, the log is damaged there")
            self._offset = behind
            if behind >= current.end:
                self._next_range()
            return
        elif pulled.status in {STATUS_OK, STATUS_OFFSET_TOO_SMALL}:
            self._lose(f"{where}: offsets {self._offset} to {pulled.first_offset - 1} are gone")
        else:
            self._lose(f"{where}: the broker no longer has offset {self._offset} (it ends at {pulled.max_offset})")
            self._next_range()
            return
        # A batch is one record of many offsets and may reach beyond the range; the decoder checks each of them.
        empty = not pulled.count and pulled.offsets is None
        if pulled.next_offset < pulled.first_offset + pulled.count or (pulled.next_offset > self._offset and empty):
            raise BrokenRecord(
                f"{where}: {pulled.count} records from {pulled.first_offset} do not end at {pulled.next_offset}"
            )
        self._offset = pulled.next_offset
        if self._offset >= current.end or pulled.next_offset == pulled.first_offset:
            self._next_range()

    def _next_range(self) -> None:
        self._at += 1
        if self._at < len(self._ranges):
            self._offset = self._ranges[self._at].start

    def _lose(self, text: str) -> None:
        """Raise DataLost, or log where the user allowed it."""
        report_losses([text], self._options)

    def _lend(self, broker: str, lent: ExitStack) -> BlockingConnection:
        """A connection to where the ranges of this broker are asked for now; `lent` gives it back."""
        if not self._endpoints.is_reader(broker):
            return self._endpoints.masters[broker].lend(lent)
        timeout_ms = self._endpoints.timeout_ms(broker, self._options.pull_timeout_ms)
        lending = POOL.borrow(
            self._endpoints.of(broker), timeout_ms, signer=self._options.signer, tls=self._options.client_tls
        )
        return lent.enter_context(lending)

    def _recover(self, broker: str, address: Address, failure: Exception) -> None:
        """Count a failure; wait, and doubt that the broker is still there, or give up."""
        self._endpoints.masters[broker].failed()
        now = clock.monotonic_s()
        self._failing_since = now if not self._attempts else self._failing_since
        self._attempts += 1
        failing_ms = (now - self._failing_since) * 1000
        if self._attempts > self._options.fetch_retries and failing_ms >= self._options.broker_wait_ms:
            raise unreachable(address, failure, self._options) from failure
        LOG.warning("pull from %s:%d failed (%s), attempt %d", *address, failure, self._attempts)
        time.sleep(min(self._attempts * self._options.fetch_retry_interval_ms, RETRY_PAUSE_MS_MAX) / 1000)


def report_losses(lost: Sequence[str], options: ReadOptions) -> None:
    """Raise DataLost for the sentences, or log them where failOnDataLoss is off."""
    if not lost:
        return
    if options.fail_on_data_loss:
        raise DataLost(
            "; ".join(lost)
            + ". Set the option failOnDataLoss to false to go on with what is left, or start with a new checkpoint"
        )
    for text in lost:
        LOG.warning("data loss accepted by failOnDataLoss=false: %s", text)


def mean_record_bytes(work: Sequence[QueueRange], masters: Mapping[str, GroupMaster]) -> float | None:
    """Mean stored size of a message in a sample of what waits, from its longest range; None when nothing waits."""
    if not work:
        return None
    longest = max(work, key=lambda one: one.rows)
    body = encode_range_pull(longest.queue_id, longest.start, longest.end, MEAN_SAMPLE_BYTES)
    pulled = decode_range_pull_reply(masters[longest.key.broker].ask(Command(RequestCode.RANGE_PULL, body=body)).body)
    # With batches the sample may begin before what was asked for: the mean is then a little too large.
    return len(pulled.blob) / (pulled.next_offset - pulled.first_offset) if pulled.count else None


class RangePartition(InputPartition):
    """The ranges of one task, where their brokers are, and where else they are served."""

    def __init__(
        self,
        ranges: Sequence[QueueRange],
        addresses: Mapping[str, MasterAddress],
        short_cuts: ShortCuts | None = None,
        turn: int = 0,
    ) -> None:
        """`turn`: which task of the batch it is; tasks are spread over replicas by it."""
        super().__init__(None)
        self.ranges = tuple(ranges)
        brokers = {one.key.broker for one in ranges}
        self.addresses = {broker: address for broker, address in addresses.items() if broker in brokers}
        self.short_cuts = (short_cuts or ShortCuts()).among(brokers)
        self.turn = turn


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
    fetcher = RangeFetcher(partition.ranges, masters, options, partition.short_cuts, row_filter, partition.turn)
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
    bounds = {key: one for key, one in patiently(watch.complete, options, GroupAbsent).items() if one.max > one.min}
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
