"""One master's time in office: the rules it leads by, what it begins with towards its replicas, and how that ends.

    rules   who is in sync at first, from where on its epoch counts, when a message is acknowledged
    begin   the former master counts as absent, replicas are served, the first record of an elected master, doubts
    end     no doubts, no replicas

Invariant: nothing of the epoch is confirmed before replicas are served by its rules. Loop rule: the loop's thread.
Pure: the world is that of `ReplicaStreams`, and the log one that is led, so the simulation runs this code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from broker.replication.host import ServedLog
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.replication.majority import Majority
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.steps import KnownGroup, PauseWatch
from broker.roles.sync_set import SyncSetKeeper
from broker.store.state.state_kinds import MASTER_EPOCH, StateChange


class LedLog(ServedLog, Protocol):
    """A log that is open for the epoch of its master."""

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append changes of durable state as one record; where it stands."""
        ...


@dataclass(frozen=True, slots=True)
class TermRules:
    """What every master of a group leads by."""

    cluster: str
    group: str
    acknowledge: Acknowledge
    """Where controllers keep the set in sync; elsewhere a majority acknowledges."""
    settings: LeaderSettings
    leader: Callable[..., Leader] = Leader
    members: Callable[[frozenset[int], int], SyncStateSet] = SyncStateSet

    def begin(self, broker: int, view: KnownGroup, store: LedLog, now_ms: int, majority: Majority | None) -> Leader:
        """What decides in the epoch that the log was opened for; `majority` confirms in a group without controllers."""
        return self.leader(
            broker,
            view.epoch,
            store.replica.epochs[-1][1],
            self.members(view.members | {broker}, view.set_epoch),
            self.acknowledge if majority is None else Acknowledge(in_sync_min=majority.size),
            self.settings,
            cluster=self.cluster,
            group=self.group,
            confirm=store.confirm_position,
            now_ms=now_ms,
            majority=majority,
        )


class MasterTerm:
    """Of one master in one epoch."""

    def __init__(
        self,
        leader: Leader,
        store: LedLog,
        streams: ReplicaStreams,
        pauses: PauseWatch,
        log: Any,
        *,
        doubtful: Callable[[], None],
    ) -> None:
        """`doubtful` is called when it may have been replaced because it stood still."""
        self.leader = leader
        self.in_sync = SyncSetKeeper(leader, streams, log)
        self._store, self._streams, self._pauses, self._doubtful = store, streams, pauses, doubtful

    def begin(self, former: int | None) -> None:
        """Serve replicas; `former` was the master before: no other one would have been elected if it were there."""
        leader = self.leader
        if former is not None:
            leader.presume_absent(former)
        self._streams.lead(leader, self._store)
        if leader.majority is not None:
            # Nothing older is confirmed before this is: the first record of the epoch, which changes no state.
            self._store.append_state([StateChange(MASTER_EPOCH, b"", None)])
        self._pauses.lead(leader, self._in_doubt)

    def end(self) -> None:
        """Confirm nothing more."""
        self._pauses.lead(None)
        self._streams.step_down("this broker is not the master any more")

    def has_successor(self) -> bool:
        """Whether another broker in sync follows, which can be the master instead."""
        return any(each.broker in self.leader.members.committed for each in self.leader.replicas())

    def _in_doubt(self) -> None:
        """Waiting requests get no answer, and what members sent before proves nothing."""
        self._doubtful()
        self.in_sync.in_doubt()
