"""The master's part of a group member: the replicas' streams, who is in sync, whether messages are accepted.

Made for one epoch, thrown away with it. Each check asks `SyncSetKeeper` whether the set of replicas in sync should
change and has the controllers commit that.
Invariant: each proposal is sent at most once. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.replication.leader import Acknowledge, Leader, LeaderSettings, Proposal, in_sync_of
from broker.replication.majority import Majority
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.durability import DurabilityLog
from broker.roles.steps import KnownGroup, PauseWatch
from broker.roles.term import MasterTerm, TermRules
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.store.log_store import LogStore


TICKS = 10
"""Looks at the clock within the shortest pause that counts."""
FIRST_LOOK_S = 0.02
"""A new master checks the set after this time at first."""


class Alter(Protocol):
    """Asks the controllers for another set."""

    async def __call__(self, epoch: int, members: frozenset[int], set_epoch: int) -> KnownGroup:
        """The set as committed. Raises Refused for a refusal, another LightMQError when the outcome is unknown."""
        ...


class AppendAdmission:
    """Whether a master takes messages: enough replicas are in sync, and not too much waits for them."""

    def __init__(
        self, leader: Leader, store: LogStore, now_ms: Callable[[], int], log: Any, *, unconfirmed_bytes_max: int
    ) -> None:
        self.refused = 0
        """Requests refused because too few replicas were in sync."""
        self.refused_full = 0
        """Requests refused because too much waited for the replicas."""
        self._leader, self._store, self._now_ms, self._log = leader, store, now_ms, log
        self._unconfirmed_bytes_max = unconfirmed_bytes_max
        self._is_short = self._is_full = False

    def refusal(self) -> Refused | None:
        """Why messages are not taken now."""
        if self._leader.accepts(self._now_ms()):
            self._is_short = False
            return self._full()
        self.refused += 1
        if not self._is_short:
            self._is_short = True
            self._log.warning("in_sync_replicas_not_enough", members=sorted(in_sync_of(self._leader)))
        return Refused(ResponseCode.SYSTEM_BUSY, self.short_reason())

    def _full(self) -> Refused | None:
        """Why nothing more may wait for the replicas: what they do not take must not fill memory and disk."""
        waiting_bytes = self._store.end_position - self._store.confirm_position
        if waiting_bytes < self._unconfirmed_bytes_max:
            self._is_full = False
            return None
        self.refused_full += 1
        if not self._is_full:
            self._is_full = True
            self._log.warning("unconfirmed_log_full", waiting_bytes=waiting_bytes)
        return Refused(ResponseCode.SYSTEM_BUSY, f"{waiting_bytes} bytes wait for the replicas already; send again")

    def short_reason(self) -> str:
        """How many replicas are in sync and how many it takes."""
        there = 1 + sum(each.broker in self._leader.members.committed for each in self._leader.replicas())
        wanted = self._leader.acknowledge.in_sync_min
        if self._leader.acknowledge.mode == "count":
            wanted = self._leader.acknowledge.count
        return f"{there} of the brokers in sync can be reached, messages need {wanted}"


def rules_of(config: BrokerConfig) -> TermRules:
    """What masters lead by as it is configured."""
    settings = config.replication
    return TermRules(
        config.cluster_name,
        config.broker_name,
        Acknowledge(mode=settings.acknowledge, count=settings.in_sync_replicas, in_sync_min=settings.in_sync_min),
        LeaderSettings(
            heartbeat_ms=settings.stream_heartbeat_ms,
            silence_ms=settings.stream_silence_limit_ms,
            lag_ms=settings.lag_limit_ms,
            absence_ms=settings.absence_limit_ms,
        ),
    )


class MasterOfGroup:
    """A master in one epoch."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        view: KnownGroup,
        store: LogStore,
        streams: ReplicaStreams,
        alter: Alter,
        log: Any,
        *,
        damaged: Callable[[], None] = lambda: None,
        group_size: Callable[[], Awaitable[int]],
        pauses: PauseWatch,
        doubtful: Callable[[], None] = lambda: None,
        majority: Majority | None = None,
    ) -> None:
        """`damaged` is called once when the log is, and another broker in sync can be the master instead.

        `group_size` asks the controllers how many brokers the group has. Raises LightMQError. `pauses`: whether this
        broker may not be the master any more because it stood still; `doubtful` is called when that begins. `majority`:
        who confirms, in a group without controllers.
        """
        settings = config.replication
        self.view = view
        self._streams, self._store, self._alter, self._log = streams, store, alter, log
        self._interval_s = settings.check_interval_ms / 1_000
        self._tasks: list[asyncio.Task[None]] = []
        self._has_resigned = False
        self._damaged = damaged
        self._group_size = group_size
        self._durability = DurabilityLog(config, self._members, log)
        self.leader = rules_of(config).begin(broker_id, view, store, streams.now_ms(), majority)
        self.admission = AppendAdmission(
            self.leader, store, streams.now_ms, log, unconfirmed_bytes_max=settings.unconfirmed_bytes_max
        )
        self.pauses = pauses
        self.term = MasterTerm(self.leader, store, streams, pauses, log, doubtful=doubtful)
        self.in_sync = self.term.in_sync

    def start(self, former: int | None = None) -> None:
        """Serve replicas and maintain the set; `former` was the master before."""
        self.term.begin(former)
        self._durability.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._check()), loop.create_task(self._tick())]

    async def stop(self) -> None:
        """Confirm nothing more."""
        self.term.end()
        await self._durability.stop()
        for task in self._tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def learn(self, view: KnownGroup) -> None:
        """The controllers have committed a set."""
        if self.in_sync.learn(view):
            self._durability.group_changed()

    def has_replica(self, broker_id: int) -> bool:
        """Whether the replica of this id follows."""
        return any(each.broker == broker_id for each in self.leader.replicas())

    async def _tick(self) -> None:
        tick_s = self.pauses.limit_ms / 1_000 / TICKS
        while True:
            await asyncio.sleep(tick_s)
            if self.pauses.tick():
                self._log.info("still_the_master", by="members in sync", epoch=self.view.epoch)

    async def _members(self) -> int:
        """Brokers of the group that can be in sync: all that the controllers know but the learners that follow."""
        if self.leader.majority is not None:
            return len(self.leader.majority.members)
        learners: int = sum(each.is_learner for each in self.leader.replicas())
        return await self._group_size() - learners

    async def _check(self) -> None:
        # All that is written waits for a replica that has gone: check as soon as it counts as absent. One that comes
        # back makes losses bearable again: check when it has caught up.
        due, loop = asyncio.Event(), asyncio.get_running_loop()
        self._streams.on_gone = lambda absence_ms: loop.call_later(absence_ms / 1_000, due.set)
        self._streams.on_caught_up = due.set
        # The first checks come early: a member that died with the former master leaves the set as soon as it may.
        pauses = [self.leader.settings.absence_ms / 1_000, FIRST_LOOK_S]
        while True:
            pause_s = min(pauses.pop(), self._interval_s) if pauses else self._interval_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await due.wait()
            due.clear()
            proposal = self.in_sync.check(self._store.positions.kept)
            if proposal is not None:
                await self._propose(proposal)
            self._streams.confirm()
            self._check_damage()

    def _check_damage(self) -> None:
        """Let another broker be the master of a log that is damaged here, if one has all that is confirmed."""
        leader, store = self.leader, self._store
        if self._has_resigned or not store.quarantined:
            return
        committed, confirm = leader.members.committed, leader.confirm_position
        if any(each.broker in committed and each.acknowledged >= confirm for each in leader.replicas()):
            self._has_resigned = True
            self._log.error("master_log_damaged", position=store.replica.sound_end, end=store.end_position)
            self._damaged()

    async def _propose(self, proposal: Proposal) -> None:
        try:
            view = await self._alter(self.view.epoch, proposal.members, proposal.base_epoch)
        except Refused as error:
            self.in_sync.refused(proposal, error.code, error.remark)
        except LightMQError as error:
            self.in_sync.unanswered(proposal, str(error))
        else:
            self.learn(view)
