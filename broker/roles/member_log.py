"""The log of a member of a group: opened for one role after the other, kept up while it is a replica's.

A store fails for good when its disk does: `failed` is told then. One that was closed or cut for a role is not it, so a
store that is not the present one any more is not listened to.
Invariant: at most one store is open; how it stood is known while none is, between two roles. Loop thread only; opening
runs beside the loop, which goes on to say that this broker lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.roles.serving import upkeep
from broker.store.errors import GivenUp, StoreFailed
from broker.store.log.confirm import NEVER
from broker.store.log.epoch_file import UNLIMITED
from broker.store.log_store import LogStore
from remoting.transport.turn import soon

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from runtime.clock import Clock
    from runtime.faults import FaultPoints


@dataclass(frozen=True, slots=True)
class Standing:
    """How the log stands."""

    epoch: int = 0
    end: int = 0
    confirm: int = 0


class MemberLog:
    """The data directory of one broker of a group."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, faults: FaultPoints, log: Any, failed: Callable[[Exception], None]
    ) -> None:
        """`failed` is told of a store that can write no more."""
        self.store: LogStore | None = None
        """The open store, None between two roles."""
        self._config, self._clock, self._faults, self._log = config, clock, faults, log
        self._failed = failed
        self._standing = Standing()
        self._upkeep: asyncio.Task[None] | None = None

    def standing(self) -> Standing:
        """How the log stands, also while it is closed between two roles."""
        store = self.store
        if store is None:
            return self._standing
        return Standing(store.epoch, store.end_position, store.confirm_position)

    async def open(self, role: str, epoch: int | None = None) -> LogStore:
        """Open the log as a "writer" in an epoch or as a "replica". Raises StoreError, OSError."""
        loop = asyncio.get_running_loop()
        held: list[Callable[[], None]] | None = []

        def schedule(function: Callable[[], None]) -> None:
            if held is not None:
                held.append(function)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(function)

        def later(function: Callable[[], None]) -> None:
            (schedule if held is not None else soon)(function)

        opening = loop.run_in_executor(
            None,
            lambda: LogStore.open(
                self._config.data_directory, self._config.store, clock=self._clock, faults=self._faults,
                schedule=schedule, log=self._log, soon=later, role=role, epoch=epoch,
            ),
        )  # fmt: skip
        try:
            store = await asyncio.shield(opening)
        except asyncio.CancelledError:
            (await opening).close()  # nobody wants it any more
            raise
        waiting, held = held, None
        for function in waiting or ():
            loop.call_soon(function)
        self.store = store
        self._watch(store)
        return store

    def keep_up(self, store: LogStore, damaged: Callable[[LogStore], Awaitable[None]]) -> None:
        """Begin the upkeep of a replica's store; `damaged` is awaited each time more of it turns out to be."""
        self._upkeep = asyncio.get_running_loop().create_task(self._maintain(store, damaged))

    async def rest(self) -> None:
        """End the upkeep; the log stays open."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
            self._upkeep = None

    def close(self) -> Exception | None:
        """Close the log; the reason why not all of it is on the disk, None when it is."""
        store = self.store
        assert store is not None
        self._standing = self.standing()
        refusal = store.refusal
        self.store = None
        store.close()
        return refusal

    def _watch(self, store: LogStore) -> None:
        """Tell `failed` when the store can write no more."""

        def failed(error: Exception | None) -> None:
            asyncio.get_running_loop().call_soon(examine, error)

        def examine(error: Exception | None) -> None:
            if self.store is not store or error is None:
                return
            if isinstance(store.refusal, StoreFailed):
                self._failed(error)
            elif not isinstance(error, GivenUp):
                self._watch(store)

        store.when_confirmed(NEVER, failed)

    async def _maintain(self, store: LogStore, damaged: Callable[[LogStore], Awaitable[None]]) -> None:
        interval_s = self._config.maintain_interval_ms / 1_000
        known = store.replica.sound_end if store.quarantined else UNLIMITED
        while True:
            await asyncio.sleep(interval_s)
            await upkeep(store, self._clock.now_ms(), interval_s, self._log)
            before, known = known, store.replica.sound_end if store.quarantined else UNLIMITED
            if known < before:
                await damaged(store)
