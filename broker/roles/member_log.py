"""The log of one broker of a group: opened in each role, closed between two, kept up as a replica's.

Opening runs in a thread, so heartbeats continue. A store whose disk fails stays failed, and `failed` is called. One
that was closed for a change of role is no longer the current one, and its failure is ignored.
Invariants: at most one store is open; its positions are known between two roles too. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.roles.serving import upkeep
from broker.store.errors import GivenUp, StoreFailed
from broker.store.log.confirm import NEVER
from broker.store.log.epoch_file import UNLIMITED
from broker.store.log_store import LogStore
from remoting import background
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
    written: int = 0
    """Epoch of the last byte."""


class MemberLog:
    """The data directory of one broker of a group."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, faults: FaultPoints, log: Any, failed: Callable[[Exception], None]
    ) -> None:
        """`failed` is called with a store that can no longer write."""
        self.store: LogStore | None = None
        """The open store, None between two roles."""
        self.is_whole = False
        """Whether it is closed, with all of it on the disk."""
        self._config, self._clock, self._faults, self._log = config, clock, faults, log
        self._failed = failed
        self._standing = Standing()
        self._upkeep: asyncio.Task[None] | None = None

    def standing(self) -> Standing:
        """How the log stands, also while it is closed between two roles."""
        store = self.store
        if store is None:
            return self._standing
        end = store.end_position
        written = next((epoch for epoch, start in reversed(store.replica.epochs) if start < end), 0)
        return Standing(store.epoch, end, store.confirm_position, written)

    async def open(self, role: str, epoch: int | None = None) -> LogStore:
        """Open the log as a "writer" in an epoch or as a "replica". Raises StoreError, OSError."""
        self.is_whole = False
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
            (await opening).close()  # it is no longer wanted
            raise
        waiting, held = held, None
        for function in waiting or ():
            loop.call_soon(function)
        self.store = store
        self._watch(store)
        return store

    def keep_up(self, store: LogStore, damaged: Callable[[LogStore], None], before: Callable[[], None]) -> None:
        """Begin the upkeep of a replica's store; `damaged` is called each time more of it turns out to be.

        `before` is called at the beginning of every round.
        """
        self._upkeep = background.task(self._maintain(store, damaged, before), "keeps up a replica's log")

    async def rest(self) -> None:
        """End the upkeep; the log stays open."""
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
            self._upkeep = None

    def close(self) -> None:
        """Close the log, if it is open."""
        store = self.store
        if store is None:
            return
        self._standing = self.standing()
        self.is_whole = store.refusal is None
        self.store = None
        store.close()

    def _watch(self, store: LogStore) -> None:
        """Call `failed` when the store can no longer write."""

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

    async def _maintain(
        self, store: LogStore, damaged: Callable[[LogStore], None], each_round: Callable[[], None]
    ) -> None:
        interval_s = self._config.maintain_interval_ms / 1_000
        known = store.replica.sound_end if store.quarantined else UNLIMITED
        while True:
            await asyncio.sleep(interval_s)
            await upkeep(store, self._clock.now_ms(), interval_s, self._log, each_round)
            before, known = known, store.replica.sound_end if store.quarantined else UNLIMITED
            if known < before:
                damaged(store)
