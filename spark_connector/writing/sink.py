"""What a sink sends to brokers: the rows of its tasks, and the ledgers' steps: commit everywhere, finish, drop.

Rows of one task travel to one broker group with several frames in flight, repeated after a lost connection: `InFlight`
keeps the frames and `GroupMaster` finds the master. A frame that is sent again carries how many rows came before it, so
that it is not staged twice. Invariant: `finish` returns when every frame was answered.

Exactly-once comes from two things a broker keeps: attempts under (sink, batch, partition, attempt), of which a
commit shows exactly the listed ones, and a ledger with each sink's last batch, which makes a repeated commit or
replay harmless. A batch that is staged at several broker groups goes in three steps, each of which may be repeated:

    prepare   at every other group    its attempts are checked and kept
    commit    at the sink's home      decides the batch; the plan of the other groups is part of that ledger record
    commit    at every other group    the home's plan, whichever process does it

A process that finds a batch decided (a replay after a dead driver) compares its rows with those that were committed
(`replays`), then commits the plan and nothing else. Invariant: the home is the group with the highest batch; among
equals the one that decided it, which has its digest and plan, then the first by name, so a group that joins changes
nothing. Thread rule: one task or the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from remoting.client.blocking import BlockingConnection
from remoting.client.in_flight import FlightFrame, InFlight, WindowLimits
from remoting.protocol.bodies import sink_body
from remoting.protocol.bodies.sink_body import BatchDigest, Planned, StageHandle
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers import GroupMaster, Outage, find_groups, unreachable
from spark_connector.errors import BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import WriteOptions
from spark_connector.writing.replays import Replayed, check_behind, check_same, note_commit
from spark_connector.writing.row_encoder import EncodedRows


@dataclass(frozen=True, slots=True)
class SinkHome:
    """Where a sink's batches are decided: group, last batch there (-1 for none), what of it is at other groups."""

    group: str
    last_batch: int
    plan: tuple[Planned, ...]
    brokers: Mapping[str, GroupMaster]
    """Every broker group there is."""
    digest: BatchDigest | None = None
    """What the rows of the last batch were; None where that is not known."""
    mqtt: str = ""
    """The group that has MQTT, where the controllers hold it."""


def sink_home(sink: str, options: WriteOptions) -> SinkHome:
    """Ask every broker group for the sink's ledger; raises BrokerUnreachable when one of them does not answer, and
    GroupAbsent while one has no master.

    Taking another one instead would repeat rows: the silent one may have the batch.
    """
    groups = find_groups(options)
    groups.require_all(f"the last batch of sink {sink!r} may be there")
    brokers = groups.masters
    states = [(name, ledger_of(master, sink)) for name, master in brokers.items()]
    name, state = max(states, key=lambda one: (one[1].last_batch, one[1].digest is not None or bool(one[1].plan)))
    return SinkHome(name, state.last_batch, tuple(state.plan), brokers, state.digest, groups.mqtt)


def ledger_of(master: GroupMaster, sink: str) -> sink_body.LedgerState:
    """What one broker knows of a sink."""
    reply = master.ask(Command(RequestCode.LEDGER, body=sink_body.encode(sink_body.Ledger(sink))))
    return sink_body.decode(sink_body.LedgerState, reply.body)


def commit_batch(
    master: GroupMaster,
    sink: str,
    batch: int,
    handles: Sequence[StageHandle],
    *,
    plan: Sequence[Planned] = (),
    prepare: bool = False,
    digest: BatchDigest | None = None,
) -> sink_body.BatchCommitted:
    """Make the listed attempts visible, or prepare that; repeating it is harmless."""
    body = sink_body.encode(sink_body.CommitBatch(sink, batch, list(handles), list(plan), prepare, digest))
    return sink_body.decode(sink_body.BatchCommitted, master.ask(Command(RequestCode.COMMIT_BATCH, body=body)).body)


def commit_everywhere(mine: Replayed, handles: Mapping[str, Sequence[StageHandle]], options: WriteOptions) -> list[str]:
    """Commit what is staged at each group, or what was decided for this batch before; the groups concerned.

    Raises OptionError where other rows were decided.
    """
    sink, batch = mine.sink, mine.batch
    groups = find_groups(options)
    brokers = groups.masters
    if len(brokers) == 1 and not groups.absent and set(handles) <= set(brokers):
        home = SinkHome(next(iter(brokers)), sink_body.NO_BATCH, (), brokers)
    else:
        home = sink_home(sink, options)
    if home.last_batch >= batch:
        return finish_batch(home, mine, options, was_staged=True)
    others = {group: list(staged) for group, staged in handles.items() if group != home.group}
    for group, staged in others.items():
        commit_batch(_at(home, group), sink, batch, staged, prepare=True)
    plan = [Planned(group, staged) for group, staged in others.items()]
    master = _at(home, home.group)
    decided = commit_batch(master, sink, batch, handles.get(home.group, ()), plan=plan, digest=mine.digest)
    if decided.already and decided.digest is None and mine.digest is not None:
        check_behind(mine, ledger_of(master, sink).last_batch, options)
    check_same(mine, decided.digest, options, was_staged=True)
    note_commit(mine.run)
    return _finish(home, sink, batch, decided.plan)


def finish_batch(home: SinkHome, mine: Replayed, options: WriteOptions, *, was_staged: bool = False) -> list[str]:
    """Commit at the other groups what the home has decided for this batch, if it is its last; the groups concerned.

    Raises OptionError where this batch has other rows, or is one before the last, whose rows are not known any more.
    """
    check_behind(mine, home.last_batch, options)
    if home.last_batch != mine.batch:
        return [home.group]
    check_same(mine, home.digest, options, was_staged=was_staged)
    return _finish(home, mine.sink, mine.batch, home.plan)


def _finish(home: SinkHome, sink: str, batch: int, plan: Sequence[Planned]) -> list[str]:
    for part in plan:
        commit_batch(_at(home, part.group), sink, batch, part.handles)
    return [home.group, *(part.group for part in plan)]


def _at(home: SinkHome, group: str) -> GroupMaster:
    """The master of a group; raises BrokerUnreachable while no name server knows its master."""
    if group not in home.brokers:
        raise BrokerUnreachable(f"no name server knows a master of the broker group {group!r}, which has rows staged")
    return home.brokers[group]


def abort_batch(master: GroupMaster, sink: str, batch: int) -> None:
    """Drop what is staged for a batch, but not what is prepared for its commit."""
    master.ask(Command(RequestCode.ABORT_BATCH, body=sink_body.encode(sink_body.AbortBatch(sink, batch))))


def forget_sink(master: GroupMaster, sink: str) -> None:
    """Make the broker forget a sink that will not commit again, so that its ledger does not keep the name forever."""
    abort_batch(master, sink, sink_body.NO_BATCH)


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
class _Request:
    """Entries that travel as one request, and how many rows of the task go before them."""

    body: bytes
    rows: int
    first: int


class RowSender:
    """Sends entries to the master of a group, staged under `attempt` or (None) appended directly.

    Raises BrokerUnreachable or BrokerRefused when repeating does not help, for as long as a broker may be away.
    """

    def __init__(self, master: GroupMaster, attempt: AttemptName | None, options: WriteOptions) -> None:
        self.rows = 0
        """Rows that the broker has answered for."""
        self._attempt = attempt
        self._options = options
        self._master = master
        self._window: InFlight[_Request] = InFlight(
            WindowLimits(frame_items_max=1, frame_bytes_max=FRAME_BYTES_MAX, frames_in_flight_max=FRAMES_IN_FLIGHT_MAX)
        )
        self._sent: deque[tuple[int, FlightFrame[_Request]]] = deque()
        """Numbers of the requests without an answer, with their frames."""
        self._first = 0
        self._failures = 0
        self._outage = Outage(options)
        self._lent = ExitStack()
        self._connection: BlockingConnection | None = None

    def add(self, rows: EncodedRows) -> None:
        """Send entries; returns when one more frame may be sent."""
        for request in self._requests(rows):
            self._window.add(request, len(request.body))
            self._settle(FRAMES_IN_FLIGHT_MAX - 1)

    def finish(self) -> int:
        """Wait for every answer and return the number of rows."""
        self._settle(0)
        self.close()
        return self.rows

    def close(self) -> None:
        """Give the connection back; one that still has answers to come is closed."""
        self._connection = None
        self._lent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self, most: int) -> None:
        """Send what may be sent and take answers until at most `most` frames are without one."""
        while not self._window.is_idle:
            try:
                self._exchange(most)
            except (OSError, LightMQError) as failure:
                self.close()
                self._sent.clear()
                self._window.lost()
                if isinstance(failure, BrokerRefused):
                    raise
                self._pause(failure)
            else:
                return

    def _exchange(self, most: int) -> None:
        if self._connection is None:
            self._connection = self._master.lend(self._lent)
        while (frame := self._window.take()) is not None:
            self._sent.append((self._connection.send(self._command(frame.items[0])), frame))
        while len(self._sent) > most:
            number, frame = self._sent[0]
            self._check(self._connection.receive(number))
            self._sent.popleft()
            self._window.stored(frame)
            self.rows += frame.items[0].rows
            if self._failures:
                self._failures = 0
                self._outage.end()

    def _check(self, reply: Command) -> None:
        """Raise BrokerRefused, or OSError for a refusal that means the same frame again later."""
        if reply.code in BUSY:
            raise OSError(f"the broker is busy: {reply.remark}")
        self._master.check(reply)

    def _pause(self, failure: Exception) -> None:
        """Count a failure and wait for a moment; raises BrokerUnreachable after too many for too long."""
        self._master.failed()
        self._failures += 1
        if self._failures > self._options.fetch_retries:
            self._outage.pause_after(unreachable(self._master.address, failure, self._options))
        else:
            time.sleep(self._options.fetch_retry_interval_ms / 1000)

    def _command(self, request: _Request) -> Command:
        if self._attempt is None:
            return Command(RequestCode.APPEND_MANY, body=request.body)
        fields = self._attempt.fields() | {"first": str(request.first)}
        return Command(RequestCode.STAGE, fields=fields, body=request.body)

    def _requests(self, batch: EncodedRows) -> Iterator[_Request]:
        """Cut encoded rows into requests."""
        begin = 0
        while begin < len(batch):
            limit = batch.edges[begin] + FRAME_BYTES_MAX
            end = max(begin + 1, int(batch.edges.searchsorted(limit, side="right")) - 1)
            data = batch.data[int(batch.edges[begin]) : int(batch.edges[end])]
            rows = batch.rows(begin, end)
            yield _Request(bytes(data), rows, self._first)
            self._first += rows
            begin = end
