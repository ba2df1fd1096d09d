"""What the controller needs of consensus, the errors it may end in, and the engine of a controller without peers.

Invariant of every engine: what `propose` returned is applied on this controller, durable on a majority and never lost
again; commands are applied in one order everywhere; `barrier` returns only when everything that was committed anywhere
before the call is applied here. Loop rule: created, called and answering on one event loop, whatever threads it uses.

`SingleEngine` has a journal and a snapshot of its own. Commands proposed in one turn of the loop are written and
fsynced together, then applied and answered in that order. After `snapshot_entries` entries the state is written as a
snapshot and the journal cut behind it; a crash at any point in between leaves a snapshot and the entries that follow
it. Nothing is applied or answered before its entry is durable. A failed write ends the engine: what the kernel keeps
after a failed fsync is not known. Files are written in a thread, by one task at a time.

Commands on their way through consensus: proposed until their outcome is known, applied once.

The replicated machine as engines see it (`Deduplicated`): commands in envelopes, a repeated one answered as before.

    envelope    msgpack [client, request, command]

A controller that does not learn what became of a command sends it again under the same (client, request); it is then
applied once. Invariant: `apply` never raises and is deterministic, the memory of answers included, which is bounded and
part of the snapshot. Pure.

`Proposer` sends a command to consensus, again under the same request id while its fate is unknown.
Invariant: a command is applied at most once, and a read that waited for `barrier` is never stale. Barriers of many
readers are one command: a reader joins the next one, never one already on its way, which may have been too early.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from controller.consensus.journal import Journal, RaftSnapshot, Vote, load, save
from controller.raft.messages import REGULAR
from controller.replicas.group import Barrier, Command, GroupView, Outcome, decode, encode
from controller.replicas.machine import ReplicaMachine
from remoting import background
from remoting.protocol.errors import LightMQError, LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from runtime.files import make_directory
from runtime.logs import get_logger

COMMAND_BYTES_MAX = 1_048_576
"""Largest command; a larger one is our own caller's mistake."""


class NotLeading(LightMQError):
    """Another controller leads, or none does now; nothing was applied. `leader` is its node id if it is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"this controller does not lead; the leader is {leader or 'not known'}")
        self.leader = leader


class OutcomeUnknown(LightMQError):
    """The command may have been applied or may be later; repeating it with the same request id gives the answer."""


class ConsensusFailed(LightMQError):
    """The engine cannot continue, because it cannot write its files; the process should end."""


SILENCE_HEARTBEATS_MIN_MS = 1_000
"""Shortest silence after which a connection between controllers is given up."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """How an engine works; times in milliseconds."""

    heartbeat_ms: int = 40
    election_ms: int = 300
    fallback_ms: int = 1_000
    propose_timeout_ms: int = 3_000
    snapshot_entries: int = 5_000
    host: str = ""
    """Address to listen on; empty: the member's own."""


class Machine(Protocol):
    """The replicated state; called in the order of the log, always by the same thread at a time."""

    def apply(self, data: bytes) -> object:
        """Carry out a command. Never raises."""
        ...

    def encode(self) -> bytes:
        """Return everything that `restore` needs, as bytes."""
        ...

    def restore(self, data: bytes) -> None:
        """Take over a whole state. Raises on bytes that are none."""
        ...


class Engine(Protocol):
    """One controller's part in consensus."""

    node_id: str

    @property
    def is_leader(self) -> bool:
        """Whether this controller may answer; proven only by `propose` and `barrier`."""
        ...

    @property
    def leader(self) -> str | None:
        """Node id of the leader as far as this controller knows."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a leader is known and everything committed has been received."""
        ...

    @property
    def obstacle(self) -> str:
        """What keeps this controller from voting, and what to do; empty when nothing does."""
        ...

    @property
    def outdated(self) -> frozenset[str]:
        """Members that may not understand all commands of this release; known where this controller leads."""
        ...

    async def start(self) -> None:
        """Restore what is on disk and take part. Raises LocalMisuse, OSError."""
        ...

    async def stop(self) -> None:
        """Leave; what was answered stays durable."""
        ...

    async def propose(self, data: bytes) -> object:
        """What the machine answered to this command. Raises NotLeading, OutcomeUnknown, ConsensusFailed."""
        ...

    async def barrier(self) -> None:
        """Return when the machine here has everything committed before the call. Raises as `propose`."""
        ...

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Call `callback(leading)` at every change, on the loop."""
        ...

    async def until_failed(self) -> Exception:
        """Wait until the engine fails, and return why."""
        ...

    def status(self) -> Mapping[str, object]:
        """Numbers for metrics and people: term, log entries, commits."""
        ...


JOURNAL_FILE = "journal"
SNAPSHOT_FILE = "snapshot"
VOTE_FILE = "vote"
TERM = 1
FIRST_ENTRY = (b"\x01", 1, 0)
"""Every log begins with this entry, so that one controller's log may become that of three."""

Pending = tuple[bytes, asyncio.Future[object]]


class SingleEngine:
    """The engine of a controller without peers."""

    def __init__(
        self, directory: Path, machine: Machine, *, node_id: str = "n1", snapshot_entries: int = 5_000
    ) -> None:
        self.node_id = node_id
        self._directory = directory
        self._machine = machine
        self._snapshot_entries = snapshot_entries
        self._journal: Journal | None = None
        self._pending: list[Pending] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[Exception] | None = None
        self._leadership: list[Callable[[bool], None]] = []
        self._leading = False
        self._log = get_logger("consensus")
        self.applied = 0
        self.snapshots = 0

    @property
    def is_leader(self) -> bool:
        """Always while it runs."""
        return self._leading

    @property
    def leader(self) -> str | None:
        """This controller's own id while it runs, else None."""
        return self.node_id if self._leading else None

    @property
    def ready(self) -> bool:
        """Whether the journal is open and commands are taken."""
        return self._leading

    @property
    def obstacle(self) -> str:
        """Empty: it depends on no other controller."""
        return ""

    @property
    def outdated(self) -> frozenset[str]:
        """None: there is no other controller."""
        return frozenset()

    async def start(self) -> None:
        """Restore the snapshot and apply what follows it."""
        self._failure = asyncio.get_running_loop().create_future()
        check_members(self._directory, (self.node_id,))
        make_directory(self._directory)
        journal = self._journal = Journal(self._directory / JOURNAL_FILE)
        snapshot = load(self._directory / SNAPSHOT_FILE, RaftSnapshot)
        if snapshot is None and not len(journal):
            journal.add(FIRST_ENTRY)
        index = FIRST_ENTRY[1] if snapshot is None else snapshot.last[1]
        if not len(journal) or not journal[0][1] <= index <= journal[-1][1]:
            raise LocalMisuse(f"{journal.path} does not follow the snapshot beside it: put back a copy of both")
        if snapshot is not None:
            self._machine.restore(snapshot.state)
        for command, place, _ in journal.part(0):
            if place > index and command[:1] == REGULAR:
                self._machine.apply(command[1:])
        self.applied = journal[-1][1]
        save(self._directory / VOTE_FILE, Vote(TERM, self.node_id, self.applied, (self.node_id,)))
        self._lead(leading=True)

    async def stop(self) -> None:
        """Finish what is being written."""
        self._lead(leading=False)
        if self._writer is not None:
            await asyncio.wait([self._writer])
        if self._journal is not None and self._failure is not None and not self._failure.done():
            self._journal.close()

    async def propose(self, data: bytes) -> object:
        """Write, apply, answer."""
        if not self._leading:
            raise NotLeading(None)
        assert len(data) <= COMMAND_BYTES_MAX, len(data)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._pending.append((data, future))
        if self._writer is None:
            self._writer = background.task(self._write(), "writes the controller's decisions")
        return await future

    async def barrier(self) -> None:
        """Returns at once: there is no other controller that could have committed anything."""
        if not self._leading:
            raise NotLeading(None)

    def on_leadership(self, callback: Callable[[bool], None]) -> None:
        """Called at start and stop."""
        self._leadership.append(callback)

    async def until_failed(self) -> Exception:
        """Wait for a write that fails."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    def status(self) -> Mapping[str, object]:
        """Term, applied index, entries and snapshots for the status page."""
        entries = len(self._journal) if self._journal is not None else 0
        return {"term": TERM, "applied": self.applied, "log_entries": entries, "snapshots": self.snapshots}

    def _lead(self, *, leading: bool) -> None:
        if self._leading != leading:
            self._leading = leading
            for callback in self._leadership:
                callback(leading)

    async def _write(self) -> None:
        assert self._journal is not None
        journal = self._journal
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                for number, (data, _) in enumerate(batch, journal[-1][1] + 1):
                    journal.add((REGULAR + data, number, TERM))
                await asyncio.to_thread(journal.sync)
                for data, future in batch:
                    answer = self._machine.apply(data)
                    self.applied += 1
                    if not future.done():
                        future.set_result(answer)
                if len(journal) - 2 >= self._snapshot_entries:
                    await self._snapshot(journal)
            except OSError as error:
                self._fail(error, batch)
                return
        self._writer = None

    async def _snapshot(self, journal: Journal) -> None:
        snapshot = RaftSnapshot(journal[-2], journal[-1], self._machine.encode())
        await asyncio.to_thread(save, self._directory / SNAPSHOT_FILE, snapshot)
        await asyncio.to_thread(journal.cut_head, len(journal) - 2)
        self.snapshots += 1

    def _fail(self, error: OSError, batch: list[Pending]) -> None:
        self._log.error("consensus_failed", directory=str(self._directory), error=str(error))
        assert self._failure is not None
        failure = ConsensusFailed(f"the controller's journal in {self._directory} cannot be written: {error}")
        self._failure.set_result(failure)
        self._lead(leading=False)
        for _, future in [*batch, *self._pending]:
            if not future.done():
                future.set_exception(failure)
        self._pending.clear()


def check_members(directory: Path, members: tuple[str, ...]) -> None:
    """Refuse a directory of another set of controllers: a majority of strangers could forget everything."""
    vote = load(directory / VOTE_FILE, Vote)
    if vote is not None and vote.members != members:
        raise LocalMisuse(
            f"{directory} belongs to the controllers {', '.join(vote.members)}, not to {', '.join(members)}: stop all, "
            f"copy the directory of one that led to every other and delete the file {VOTE_FILE} in each"
        )


CLIENTS_MAX = 64
"""Clients whose answers are remembered; a client is one start of one controller."""
ANSWERS_MAX = 64
"""Answers remembered per client; more than one controller ever has in flight."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A command and the client that proposed it."""

    client: Annotated[str, Meta(min_length=1, max_length=64)]
    request: Annotated[int, Meta(ge=0)]
    command: bytes


class MachineSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot's content."""

    groups: bytes
    answers: dict[str, dict[int, Outcome]]


class DeduplicatedMachine:
    """Applies each (client, request) once."""

    def __init__(
        self,
        machine: ReplicaMachine,
        changed: Callable[[GroupView], None] | None = None,
        users_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called with each group whose change concerns brokers and clients, `users_changed` with another
        table of users, both on the applying thread."""
        self.machine = machine
        self._changed = changed
        self._users_changed = users_changed
        self._answers: dict[str, dict[int, Outcome]] = {}
        self._decoder = msgspec.msgpack.Decoder(Envelope)
        self.faults = 0
        """Commands that failed on an internal error; they changed nothing."""

    def apply(self, data: bytes) -> Outcome:
        """Carry out the command in an envelope, or return its earlier answer."""
        try:
            envelope = self._decoder.decode(data)
            command = decode(envelope.command)
        except (msgspec.MsgspecError, RemoteViolation, RecursionError) as error:
            return Outcome(ResponseCode.CONTROLLER_INVALID_REQUEST, f"no command: {error}")
        if isinstance(command, Barrier):
            return Outcome()
        answers = self._answers_of(envelope.client)
        known = answers.get(envelope.request)
        if known is not None:
            return known
        users = self.machine.users
        try:
            outcome = self.machine.apply(command)
        except Exception as error:  # noqa: BLE001 - a log that stops at one command stops every controller for ever
            self.faults += 1
            outcome = Outcome(ResponseCode.SYSTEM_ERROR, f"{type(command).__name__} met a fault: {error!r}")
        answers[envelope.request] = outcome
        if len(answers) > ANSWERS_MAX:
            del answers[next(iter(answers))]
        if outcome.changed and outcome.view is not None and self._changed is not None:
            self._changed(outcome.view)
        if self.machine.users is not users:
            self._users_changed()
        return outcome

    def encode(self) -> bytes:
        """Return machine and remembered answers as a snapshot's bytes."""
        return msgspec.msgpack.encode(MachineSnapshot(self.machine.encode(), self._answers))

    def restore(self, data: bytes) -> None:
        """Take over a whole state. Raises msgspec.MsgspecError, with nothing changed."""
        state = msgspec.msgpack.decode(data, type=MachineSnapshot)
        self.machine.restore(state.groups)
        self._answers = state.answers
        self._users_changed()
        if self._changed is not None:
            for group in self.machine.groups.values():
                self._changed(group.view())

    def _answers_of(self, client: str) -> dict[int, Outcome]:
        # The client that spoke last is the last one, so that the one forgotten is silent for longest.
        answers = self._answers.pop(client, {})
        self._answers[client] = answers
        if len(self._answers) > CLIENTS_MAX:
            del self._answers[next(iter(self._answers))]
        return answers


TRIES_MAX = 3
"""How often a command of unknown outcome is proposed before its caller gets OutcomeUnknown."""


class Proposer:
    """One start of one controller as a client of the replicated log; `client` must be new at every start."""

    def __init__(self, engine: Engine, client: str) -> None:
        self._engine = engine
        self._client = client
        self._requests = 0
        self._barrier: asyncio.Task[None] | None = None
        self._next_barrier: asyncio.Task[None] | None = None
        self.repeats = 0

    @property
    def outdated(self) -> frozenset[str]:
        """Members that may not understand all commands of this release, as the leading controller knows them."""
        return self._engine.outdated

    async def propose(self, command: Command) -> Outcome:
        """What became of it. Raises NotLeading, ConsensusFailed, and Refused when its fate stays unknown."""
        self._requests += 1
        envelope = msgspec.msgpack.encode(Envelope(self._client, self._requests, encode(command)))
        outcome = await self._repeated(lambda: self._engine.propose(envelope))
        assert isinstance(outcome, Outcome)
        return outcome

    async def barrier(self) -> None:
        """Return when the machine here has everything that was committed before the call. Raises as `propose`."""
        if self._next_barrier is None:
            self._next_barrier = asyncio.get_running_loop().create_task(self._pass_barrier(self._barrier))
            self._next_barrier.add_done_callback(_failure_of)  # its readers may all be cancelled
        await asyncio.shield(self._next_barrier)

    async def _pass_barrier(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._barrier, self._next_barrier = self._next_barrier, None
        await self._repeated(self._engine.barrier)

    async def _repeated(self, ask: Callable[[], Awaitable[object]]) -> object:
        for _ in range(TRIES_MAX):
            try:
                return await ask()
            except OutcomeUnknown:
                if not self._engine.is_leader:
                    raise NotLeading(self._engine.leader) from None
                self.repeats += 1
        raise Refused(ResponseCode.SYSTEM_BUSY, "the controllers did not agree in time: ask again")


def _failure_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
