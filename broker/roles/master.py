"""The master's part of a group member: its term carried out, and whether messages are accepted.

Made for one epoch, thrown away with it. What it does towards replicas and when is decided in `term`; the controllers
are asked here. Invariant: each proposal is sent at most once. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from broker.replication.leader import Acknowledge, Leader, LeaderSettings, Proposal, in_sync_of
from broker.replication.majority import Majority
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.durability import DurabilityLog
from broker.roles.steps import ControllerAnswer, KnownGroup, PauseWatch
from broker.roles.term import MasterTerm, TermHandOver, TermRules
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import ResponseCode

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.roles.serving import RoleGate
    from broker.store.log_store import LogStore


class GroupAuthority(Protocol):
    """Who decides about the group: the controllers, or the members themselves."""

    async def alter(self, epoch: int, members: frozenset[int], set_epoch: int) -> ControllerAnswer:
        """What the controllers say to this set. Raises LightMQError when the outcome is unknown."""
        ...

    async def group_size(self) -> int:
        """How many brokers the group has. Raises LightMQError."""
        ...

    def majority(self, epoch: int) -> Majority | None:
        """Who confirms what the master of an epoch writes, in a group without controllers."""
        ...

    def ask_again(self) -> None:
        """There may be another master."""

    def lost_something(self) -> None:
        """The log is damaged: let another broker be the master."""


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
        authority: GroupAuthority,
        log: Any,
        *,
        pauses: PauseWatch,
        doubt: Callable[[], None],
        stay: Callable[[], None],
    ) -> None:
        """`pauses`: whether this broker may not be the master any more because it stood still; `doubt` is called when
        that begins, `stay` when clients need not wait for another master any more (`MasterTerm.yields`)."""
        self.view = view
        self.leader = rules_of(config).begin(broker_id, view, store, streams.now_ms(), authority.majority(view.epoch))
        self._authority = authority
        self.ask_again, self.resign, self.doubt = authority.ask_again, authority.lost_something, doubt
        self.stay = stay
        self.term = MasterTerm(
            self.leader, store, streams, pauses, self, log, interval_ms=config.replication.check_interval_ms
        )
        self.admission = AppendAdmission(
            self.leader, store, streams.now_ms, log, unconfirmed_bytes_max=config.replication.unconfirmed_bytes_max
        )
        self.in_sync = self.term.in_sync
        self._durability = DurabilityLog(config, self._members, log)
        self._proposing: set[asyncio.Task[None]] = set()

    def begin(self, former: int | None) -> None:
        """Serve replicas and maintain the set; `former` was the master before."""
        self.term.begin(former)
        self._durability.start()

    def end(self) -> None:
        """Confirm nothing more."""
        self.term.end()

    async def rest(self) -> None:
        """Wait until nothing of it is under way, after its end."""
        await self._durability.stop()
        for task in self._proposing:
            task.cancel()
        await asyncio.gather(*self._proposing, return_exceptions=True)

    def learn(self, view: KnownGroup) -> None:
        """The controllers have committed a set."""
        if self.term.learn(view):
            self._durability.group_changed()

    def has_replica(self, broker_id: int) -> bool:
        """Whether the replica of this id follows."""
        return any(each.broker == broker_id for each in self.leader.replicas())

    async def _members(self) -> int:
        """Brokers of the group that can be in sync: all that the controllers know but the learners that follow."""
        if self.leader.majority is not None:
            return len(self.leader.majority.members)
        learners: int = sum(each.is_learner for each in self.leader.replicas())
        return await self._authority.group_size() - learners

    def propose(self, proposal: Proposal) -> None:
        """Ask the controllers for this set."""
        self._proposing.add(task := asyncio.get_running_loop().create_task(self._propose(proposal)))
        task.add_done_callback(self._proposing.discard)

    async def _propose(self, proposal: Proposal) -> None:
        try:
            answer = await self._authority.alter(self.view.epoch, proposal.members, proposal.base_epoch)
        except LightMQError as error:
            answer = ControllerAnswer(None, remark=str(error))
        if self.term.concluded(proposal, answer):
            self._durability.group_changed()


class Pausing(Protocol):
    """What takes roles."""

    def pause(self) -> None:
        """Begin none until it is resumed."""


class Succession(Protocol):
    """Who has another broker be the master in place of this one."""

    @property
    def queue(self) -> Pausing:
        """The roles to be taken here."""

    async def hand_over(self, successor: int | None) -> None:
        """Ask for another master, summon this one if there is one; returns when there is. Raises LightMQError."""


class HandingOver:
    """One hand-over of a master, as tasks of the loop."""

    def __init__(
        self,
        master: MasterOfGroup,
        gate: RoleGate,
        settle: Callable[[Callable[[], None]], None],
        succession: Succession,
        to: int | None = None,
    ) -> None:
        """`settle` calls back when all that was taken is confirmed or never will be; `to`: see `TermHandOver`."""
        self._hand_over = TermHandOver(master.term, self, to)
        self._gate, self._succession = gate, succession
        self.settle = settle
        self._seeking: list[asyncio.Task[None]] = []
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> str:
        """Hand over; why it is not known that another broker is the master, empty when one is."""
        try:
            self._hand_over.begin()
            return await self._over
        finally:
            for task in self._seeking:
                task.cancel()
            await asyncio.gather(*self._seeking, return_exceptions=True)

    def suspend(self) -> None:
        """What waits is told the next master's address: this broker follows nobody for a moment."""
        self._gate.suspend()
        self._succession.queue.pause()

    def seek(self, successor: int | None) -> None:
        """Ask in a task; there may be several."""
        self._seeking.append(asyncio.get_running_loop().create_task(self._seek(successor)))

    def handed_over(self, why_not: str) -> None:
        """Let whoever awaits the end know it; the first outcome counts."""
        if not self._over.done():
            self._over.set_result(why_not)

    async def _seek(self, successor: int | None) -> None:
        try:
            await self._succession.hand_over(successor)
        except LightMQError as error:
            self._hand_over.over(str(error) or type(error).__name__)
        else:
            self._hand_over.over()
