"""Commands to consensus and their outcomes back, repeated under the same request id while their fate is unknown.

Invariant: a command is applied at most once, and a read that waited for `barrier` is never stale. Barriers of many
readers are one command: a reader joins the next one, never one already on its way, which may have been too early.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from controller.consensus.deduplicated import Envelope
from controller.consensus.engine import Engine, NotLeading, OutcomeUnknown
from controller.replicas.commands import Command, Outcome, encode
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

TRIES_MAX = 3
"""How often a command of unknown fate is proposed before the asker is told so."""


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
            self._next_barrier.add_done_callback(_failure_of)  # every reader may have left, and then nobody asks
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
