"""The replicated machine as engines see it: commands in envelopes, a repeated one answered with what it did.

    envelope    msgpack [client, request, command]

A controller that does not learn what became of a command sends it again under the same (client, request); it is then
applied once. Invariant: `apply` never raises and is deterministic, the memory of answers included, which is bounded and
part of the snapshot. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from controller.replicas.commands import Barrier, Outcome, decode
from controller.replicas.group import GroupView
from controller.replicas.machine import ReplicaMachine
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import ResponseCode

CLIENTS_MAX = 64
"""Clients whose answers are remembered; a client is one start of one controller."""
ANSWERS_MAX = 64
"""Answers remembered per client; more than one controller ever has in flight."""


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """A command and who asks for it."""

    client: Annotated[str, Meta(min_length=1, max_length=64)]
    request: Annotated[int, Meta(ge=0)]
    command: bytes


class State(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot's content."""

    groups: bytes
    answers: dict[str, dict[int, Outcome]]


class DeduplicatedMachine:
    """Applies each (client, request) once."""

    def __init__(self, machine: ReplicaMachine, changed: Callable[[GroupView], None] | None = None) -> None:
        """`changed` is called with each group that brokers and clients should hear of, on the applying thread."""
        self.machine = machine
        self._changed = changed
        self._answers: dict[str, dict[int, Outcome]] = {}
        self._decoder = msgspec.msgpack.Decoder(Envelope)
        self.faults = 0
        """Commands that met a bug of ours; they changed nothing."""

    def apply(self, data: bytes) -> Outcome:
        """Carry out the command in an envelope, or tell what it did before."""
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
        """The whole state."""
        return msgspec.msgpack.encode(State(self.machine.encode(), self._answers))

    def restore(self, data: bytes) -> None:
        """Take over a whole state. Raises msgspec.MsgspecError, with nothing changed."""
        state = msgspec.msgpack.decode(data, type=State)
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
