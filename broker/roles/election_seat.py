"""What an election needs to know of a member's log, and what it asks of the stream that fills it.

Invariant: after `fence` nothing is acknowledged any more to the master of an earlier epoch, in the same turn of the
loop. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.replication.ha_client import HaClient
    from broker.store.log_store import LogStore


class WrittenState(Protocol):
    """How far a log goes, and in whose epoch."""

    @property
    def end(self) -> int:
        """Position behind the last record, in bytes."""

    @property
    def written(self) -> int:
        """Epoch of the last byte."""


class SeatedMember(Protocol):
    """The member whose log it is."""

    @property
    def store(self) -> LogStore | None:
        """The open log, None between two roles."""

    @property
    def client(self) -> HaClient | None:
        """The stream from the master."""

    def log_state(self) -> WrittenState:
        """How the log stands, also while it is closed between two roles."""
        ...


class ElectionSeat:
    """One member's log, for the election."""

    def __init__(self, member: SeatedMember) -> None:
        self.counted = True
        """Whether what is copied here counts for the majority."""
        self._member = member

    def place(self) -> tuple[int, int]:
        """Where the log ends: (epoch of its last byte, end)."""
        state = self._member.log_state()
        return state.written, state.end

    def copied(self, epoch: int) -> int:
        """Up to where the log is that of the master of `epoch`, on this disk; -1 while that is not known."""
        client, store = self._member.client, self._member.store
        if client is None or store is None or not client.following.connected or client.following.epoch != epoch:
            return -1
        return store.positions.kept

    def is_sound(self) -> bool:
        """Whether no damage of the log is known."""
        store = self._member.store
        return store is None or not store.quarantined

    def fence(self, epoch: int) -> None:
        """Acknowledge nothing to the master of an earlier epoch from now on."""
        client = self._member.client
        if client is not None:
            client.following.fence(epoch)

    def count_copies(self, *, counted: bool) -> None:
        """Whether what is copied here from now on counts for the majority."""
        changed, self.counted = counted != self.counted, counted
        client = self._member.client
        if changed and client is not None:
            client.introduce(is_learner=not counted)
