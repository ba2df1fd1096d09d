"""How far the log is written, flushed, kept and confirmed, and the listeners of these positions.

    written (end of the log) >= flushed >= kept = flushed, or with flush = "async" written >= confirmed

In a broker group nothing is confirmed beyond the limit that replication sets; a new start is limited to the confirmed
position in the MANIFEST until `limit_confirm` is called. Invariant: kept and confirmed positions are ends of whole
atomic groups; nothing is kept before it is as safe as the settings require. Thread rule: loop thread; `schedule` runs a
function there.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field

from broker.store.errors import GivenUp
from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog
from broker.store.log.confirm import Callback, Confirm, Flusher, FreshListener, Inline, Listener, Schedule
from broker.store.log.epoch_file import UNLIMITED
from broker.store.log.failure import Failure
from broker.store.log.flush_thread import Flush, FlushThread
from broker.store.settings import StoreSettings
from runtime.clock import Clock

PositionListener = Callable[[int], None]


@dataclass(slots=True)
class Listeners:
    """The listeners of the positions; they survive a truncation of the log."""

    advance: list[tuple[Listener, Sized | None]] = field(default_factory=list)
    written: list[PositionListener] = field(default_factory=list)
    kept: list[PositionListener] = field(default_factory=list)
    flush_s: list[Callable[[float], None]] = field(default_factory=list)


@dataclass(slots=True, frozen=True, kw_only=True)
class FlushTools:
    """How flushing uses the owner's loop."""

    clock: Clock
    schedule: Schedule
    """Runs a function on the loop thread; may be called from any thread."""
    soon: Schedule | None
    """Runs a function at the end of the loop's turn; with it small quick flushes are done there."""
    busy: Callable[[], bool]
    """Whether other work keeps the disk busy."""
    thread: Callable[[Flush, float], FlushThread]
    """Makes the thread that flushes."""


class ConfirmPositions:
    """The positions of one open log; starts the thread that flushes it."""

    def __init__(
        self,
        log: CommitLog,
        index: QueueIndex,
        confirm: Confirm,
        failure: Failure,
        settings: StoreSettings,
        tools: FlushTools,
        listeners: Listeners,
        *,
        limit: int,
        whole_below: Callable[[int], int] | None,
    ) -> None:
        """`limit`: see `limit_confirm`; `whole_below` returns the last end of a group, as the log may end within
        one."""
        self._log = log
        self._index = index
        self._tail = index.tail
        self._confirm = confirm
        self._failure = failure
        self._listeners = listeners
        self._whole_below = whole_below
        self._limit = limit
        self._given_up = False
        self._later = tools.soon or tools.schedule
        self._is_async = settings.flush == "async"
        self._pending = False
        self.flushed = self.kept = log.end
        for listener, among in listeners.advance:
            confirm.on_advance(listener, among)
        self._flusher = Flusher(
            log.sync,
            interval_ms=settings.flush_interval_ms if self._is_async else 0,
            schedule=tools.schedule,
            on_flushed=self.take_flushed,
            on_failed=failure.flush_failed,
            position=log.end,
            inline=self._inline(tools),
            monotonic_ns=tools.clock.monotonic_ns,
            thread=tools.thread,
        )

    def _inline(self, tools: FlushTools) -> Inline | None:
        if tools.soon is None:
            return None
        return Inline(
            soon=tools.soon,
            backlog=lambda: self._log.end - self.flushed,
            busy=tools.busy,
            monotonic_ns=tools.clock.monotonic_ns,
        )

    @property
    def confirmed(self) -> int:
        """Everything below it is durable and visible."""
        return self._confirm.position

    @property
    def certain(self) -> int:
        """Everything below it will not be truncated by this node, flushed or not: the end of whole groups."""
        end = self._index.end_position
        return end if self._limit >= end else self._confirm.position

    @property
    def limit(self) -> int:
        """Nothing is confirmed beyond it, whatever is safe here."""
        return self._limit

    @property
    def flushes_total(self) -> int:
        """Flushes of the log since it was opened."""
        return self._flusher.flushes_total

    # -- listeners ----------------------------------------------------------------------------------------------------

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call `callback(None)` once everything below `position` is confirmed, or with StoreFailed if it never will
        be."""
        self._confirm.when_confirmed(position, callback)

    def on_advance(self, listener: Listener, among: Sized | None = None) -> None:
        """Call `listener` with the ids of queues whose confirmed end moved, once per move; with `among` while not
        empty."""
        self._listeners.advance.append((listener, among))
        self._confirm.on_advance(listener, among)

    def on_fresh(self, listener: FreshListener) -> None:
        """Call `listener` with the small batches that were confirmed, just before `on_advance` reports the same
        move."""
        self._confirm.on_fresh(listener)

    def on_written(self, listener: PositionListener) -> None:
        """Call `listener(end position)` after every append, before it is flushed."""
        self._listeners.written.append(listener)

    def on_kept(self, listener: PositionListener) -> None:
        """Call `listener(kept position)` each time it may have moved and what it allows has been confirmed."""
        self._listeners.kept.append(listener)

    def on_flush(self, listener: Callable[[float], None]) -> None:
        """Call `listener(seconds)` for every flush of the log, in the place of the listener before: there is one."""
        self._listeners.flush_s[:] = [listener]

    # -- movements -----------------------------------------------------------------------------------------------------

    def take_written(self) -> None:
        """An append was written: notify its listeners, and have it flushed."""
        written = self._listeners.written
        if written:  # before the flush, so that what they send is in flight meanwhile
            end = self._log.end
            for listener in written:
                listener(end)
        self._flusher.request()
        if self._is_async and not self._pending:
            self._pending = True
            self._later(self._confirm_written)

    def _confirm_written(self) -> None:
        self._pending = False
        if self._failure.error is None:
            self._keep(self._index.end_position)  # the end of whole groups

    def take_flushed(self, position: int) -> None:
        """Everything below `position` has been through fdatasync; a group that is not whole may be lost at a
        restart."""
        if self._whole_below is not None:
            position = self._whole_below(position)
        times = self._flusher.times
        while times:
            elapsed_ns = times.popleft()
            for listener in self._listeners.flush_s:
                listener(elapsed_ns / 1e9)
        self.flushed = position
        self._keep(position)

    def _keep(self, position: int) -> None:
        """Everything below `position` is as safe as the settings require."""
        if position > self.kept:
            self.kept = position
        self._advance()
        kept = self._listeners.kept
        if kept:
            for listener in kept:
                listener(self.kept)

    def _advance(self) -> None:
        limit = self._limit
        self._confirm.advance(min(self.kept, limit))
        self._tail.publish_confirm(self._confirm.position, self.flushed)

    # -- replication ---------------------------------------------------------------------------------------------------

    def limit_confirm(self, position: int | None) -> None:
        """Confirm up to `position` at most, None: without a limit; what is confirmed stays so."""
        if self._given_up:
            return
        self._limit = UNLIMITED if position is None else position
        if self._failure.error is None:
            self._advance()

    def give_up(self, reason: GivenUp) -> None:
        """Report to all callbacks that wait, and all later ones, that their records may or may not survive: see
        `GivenUp`.

        Nothing more is confirmed by this opening; what was is. For a master that has lost its role.
        """
        self._limit, self._given_up = self._confirm.position, True
        self._confirm.fail(reason)

    # -- closing -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush once more and end the thread; what that allows is confirmed unless the store has failed."""
        self._flusher.close()
        if self._failure.error is None:
            self._advance()

    def silence(self) -> None:
        """Notify no listener from now on: the log will be truncated, and the removed part must not be acknowledged."""
        self._listeners = Listeners()
