"""The sink's conversation with the broker: stage rows where nobody sees them, commit a whole batch at once, or append
directly.

Exactly-once comes from two things the broker keeps: attempts under (sink, batch, partition, attempt), of which a
commit shows exactly the listed ones, and a ledger with each sink's last batch, which makes a repeated commit or
replay harmless. A frame that is repeated after a lost connection says how many rows came before it, so that it is not
staged twice. Invariant: all rows of a sink go to one broker group, because its ledger must be in one place: the group
that has committed for it before, the first by name for a new one, so that a group that joins changes nothing. Thread
rule: one task or the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from remoting.protocol import sink_body
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError
from spark_connector.brokers import find_brokers
from spark_connector.connections import POOL, Address, ask, check, unreachable
from spark_connector.entries import EncodedRows
from spark_connector.errors import BrokerRefused, OptionError
from spark_connector.options import WriteOptions
from spark_connector.outage import Outage

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""Entries per request; a single larger message makes a larger frame, up to the broker's own limit."""
FRAMES_IN_FLIGHT_MAX = 3
"""Frames sent before the first answer is awaited."""
BUSY = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
"""Answers that mean: the same again, later."""


@dataclass(frozen=True, slots=True)
class AttemptName:
    """What the rows of one task are staged under; `attempt` is random, so that no other run of the task shares it."""

    sink: str
    batch: int
    partition: int
    attempt: int

    def fields(self) -> dict[str, str]:
        """As header fields of STAGE."""
        numbers = {"batch": self.batch, "partition": self.partition, "attempt": self.attempt}
        return {"sink": self.sink} | {name: str(number) for name, number in numbers.items()}


@dataclass(frozen=True, slots=True)
class _Frame:
    """One request's worth of entries and how many rows of the task went before it."""

    body: bytes
    rows: int
    first: int


class _Source:
    """A task's frames; remembers the error that ended them, which no other connection mends.

    A generator that raised looks exhausted: going on with it would stage some of the rows as if they were all.
    """

    def __init__(self, frames: Iterator[_Frame]) -> None:
        self._frames = frames
        self.failure: Exception | None = None

    def next(self) -> _Frame | None:
        """The next frame, None behind the last."""
        try:
            return next(self._frames, None)
        except Exception as failure:
            self.failure = failure
            raise


def first_broker(options: WriteOptions) -> Address:
    """Address of the broker group that rows without a ledger go to."""
    return next(iter(find_brokers(options).values()))


@dataclass(frozen=True, slots=True)
class SinkHome:
    """Where a sink's ledger is and the last batch it has, -1 for none."""

    address: Address
    last_batch: int


def sink_home(sink: str, options: WriteOptions) -> SinkHome:
    """Ask every broker group for the sink's ledger; raises BrokerUnreachable when one of them cannot say.

    Taking another one instead would repeat rows: the silent one may have the batch.
    """
    homes = [SinkHome(address, last_batch(address, sink, options)) for address in find_brokers(options).values()]
    return max(homes, key=lambda home: home.last_batch)


def check_replay(sink: str, batch: int, last: int) -> None:
    """Raise OptionError unless a stream repeats its last batch: what is further behind is of another checkpoint."""
    if batch < last:
        raise OptionError(
            f"sink {sink!r} has committed batch {last} and this query writes batch {batch}: it has another checkpoint, "
            "whose rows would be taken for repeated ones. Give it a name of its own ('sinkId', or the batch writer's), "
            "or go on with the checkpoint that wrote them"
        )


def last_batch(address: Address, sink: str, options: WriteOptions) -> int:
    """The last batch of a sink that this broker committed, -1 for none."""
    body = sink_body.encode(sink_body.Ledger(sink))
    return sink_body.decode(
        sink_body.LedgerState, ask(address, Command(RequestCode.LEDGER, body=body), options).body
    ).last_batch


def commit_batch(
    address: Address, sink: str, batch: int, handles: Sequence[sink_body.StageHandle], options: WriteOptions
) -> int:
    """Make the listed attempts visible and return how many messages that showed now; repeating it is harmless."""
    body = sink_body.encode(sink_body.CommitBatch(sink, batch, list(handles)))
    reply = ask(address, Command(RequestCode.COMMIT_BATCH, body=body), options)
    return sink_body.decode(sink_body.BatchCommitted, reply.body).count


def abort_batch(address: Address, sink: str, batch: int, options: WriteOptions) -> None:
    """Drop what is staged for a batch."""
    ask(address, Command(RequestCode.ABORT_BATCH, body=sink_body.encode(sink_body.AbortBatch(sink, batch))), options)


def forget_sink(address: Address, sink: str, options: WriteOptions) -> None:
    """Tell the broker that a sink will not commit again, so that its ledger does not keep the name for ever."""
    abort_batch(address, sink, sink_body.NO_BATCH, options)


def send_rows(
    address: Address, batches: Iterable[EncodedRows], attempt: AttemptName | None, options: WriteOptions
) -> int:
    """Send entries, staged under `attempt` or (None) appended directly, and return the number of rows.

    Several frames are on the way at once. After a lost connection the unanswered ones are sent again, for as long as a
    broker may be away; raises BrokerUnreachable or BrokerRefused when that does not help, and whatever the rows
    themselves raised.
    """
    source = _Source(_frames(batches))
    unanswered: deque[_Frame] = deque()
    outage = Outage(options)
    rows = 0
    attempts = 0
    while True:
        try:
            with POOL.borrow(
                address, options.pull_timeout_ms, signer=options.signer, tls=options.client_tls
            ) as connection:
                sent = deque((connection.send(_request(frame, attempt)), frame) for frame in unanswered)
                while True:
                    frame = source.next() if len(sent) < FRAMES_IN_FLIGHT_MAX else None
                    if frame is not None:
                        unanswered.append(frame)
                        sent.append((connection.send(_request(frame, attempt)), frame))
                        continue
                    if not sent:
                        return rows
                    opaque, frame = sent.popleft()
                    _check_answer(connection.receive(opaque), address)
                    unanswered.popleft()
                    rows += frame.rows
                    if attempts:
                        attempts = 0
                        outage.end()
        except (OSError, LightMQError) as failure:
            if isinstance(failure, BrokerRefused) or failure is source.failure:
                raise
            POOL.forget(address)
            attempts += 1
            if attempts > options.fetch_retries:
                outage.bear(unreachable(address, failure, options))
            else:
                time.sleep(options.fetch_retry_interval_ms / 1000)


def _check_answer(reply: Command, address: Address) -> None:
    """Raise BrokerRefused, or OSError for a refusal that means the same frame again later."""
    if reply.code in BUSY:
        raise OSError(f"the broker is busy: {reply.remark}")
    check(reply, address)


def _request(frame: _Frame, attempt: AttemptName | None) -> Command:
    if attempt is None:
        return Command(RequestCode.APPEND_MANY, body=frame.body)
    return Command(RequestCode.STAGE, fields=attempt.fields() | {"first": str(frame.first)}, body=frame.body)


def _frames(batches: Iterable[EncodedRows]) -> Iterator[_Frame]:
    """Cut encoded rows into requests."""
    first = 0
    for batch in batches:
        begin = 0
        while begin < len(batch):
            limit = batch.edges[begin] + FRAME_BYTES_MAX
            end = max(begin + 1, int(batch.edges.searchsorted(limit, side="right")) - 1)
            data = batch.data[int(batch.edges[begin]) : int(batch.edges[end])]
            rows = batch.rows(begin, end)
            yield _Frame(b"".join(((end - begin).to_bytes(4, "little"), data)), rows, first)
            first += rows
            begin = end
