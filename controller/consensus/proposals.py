"""Commands on their way through consensus: proposed until their outcome is known, applied once.

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
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from controller.consensus.engine import Engine, NotLeading, OutcomeUnknown
from controller.replicas.group import Barrier, Command, GroupView, Outcome, decode, encode
from controller.replicas.machine import ReplicaMachine
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode

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

    def __init__(self, machine: ReplicaMachine, changed: Callable[[GroupView], None] | None = None) -> None:
        """`changed` is called with each group whose change concerns brokers and clients, on the applying thread."""
        self.machine = machine
        self._changed = changed
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
        return outcome

    def encode(self) -> bytes:
        """Return machine and remembered answers as a snapshot's bytes."""
        return msgspec.msgpack.encode(MachineSnapshot(self.machine.encode(), self._answers))

    def restore(self, data: bytes) -> None:
        """Take over a whole state. Raises msgspec.MsgspecError, with nothing changed."""
        state = msgspec.msgpack.decode(data, type=MachineSnapshot)
        self.machine.restore(state.groups)
        self._answers = state.answers
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
