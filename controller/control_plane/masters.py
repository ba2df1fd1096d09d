"""Masters at work: heartbeats and broken connections in, elections out, on the controller that leads.

Every controller receives heartbeats and keeps its own table of live replicas, so that a new leader has one at once; it
presumes an unknown replica alive for one time limit, so that a change of leaders is no reason to change masters. Only
the leader elects: at the end of a master's connection, after its silence, at the request of a broker or an operator.
Invariant: every decision is a command of the replicated log, proposed once per group at a time.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from controller.consensus.engine import ConsensusFailed, Engine, NotLeading, Proposer
from controller.replicas.group import Command, ElectMaster, Live, LiveTable, Outcome, ReplicaGroup
from controller.replicas.machine import ReplicaMachine, succession
from remoting.protocol.bodies.controller_body import NO_PRIORITY, Heartbeat
from remoting.protocol.errors import Refused
from remoting.transport.contracts import Peer
from runtime.clock import Clock
from runtime.logs import get_logger


@dataclass
class ElectionCounters:
    """Elections since the start, as plain integers for metrics."""

    won: int = 0
    """A master was chosen."""
    failed: int = 0
    """No master could be chosen, or the controllers did not agree."""


class GroupMasters:
    """The groups' masters as this controller keeps them."""

    def __init__(
        self,
        clock: Clock,
        engine: Engine,
        machine: ReplicaMachine,
        proposer: Proposer,
        *,
        replica_timeout_ms: int,
        scan_ms: int = 0,
        unclean: bool = False,
    ) -> None:
        """`scan_ms`: how often `tick` is called; 0: nothing is taken for a pause of this process."""
        self.engine = engine
        self.machine = machine
        self.proposer = proposer
        self.live = LiveTable(replica_timeout_ms, scan_ms)
        self.counters = ElectionCounters()
        self.stopping = False
        """This controller closes its connections: that is no sign of a dead replica."""
        self._clock = clock
        self._unclean = unclean
        self._electing: dict[str, asyncio.Task[None]] = {}
        self._log = get_logger("controller")
        engine.on_leadership(self._leadership)

    def beat(self, heartbeat: Heartbeat, channel: Peer) -> bool:
        """A heartbeat of a broker; False when it is no registered replica."""
        group = self.machine.groups.get(heartbeat.broker_name)
        replica = group.replicas.get(heartbeat.broker_id) if group is not None else None
        if replica is None or replica.address != heartbeat.broker_addr:
            return False
        priority = NO_PRIORITY if heartbeat.election_priority is None else heartbeat.election_priority
        self.heartbeat(
            heartbeat.broker_name,
            heartbeat.broker_id,
            Live(heartbeat.epoch, heartbeat.max_offset, priority),
            channel,
            confirm_offset=heartbeat.confirm_offset,
            timeout_ms=heartbeat.heartbeat_timeout_ms,
            serves_reads=heartbeat.serves_reads,
        )
        return True

    def heartbeat(
        self,
        group: str,
        broker_id: int,
        live: Live,
        channel: Peer,
        *,
        confirm_offset: int = -1,
        timeout_ms: int | None = None,
        serves_reads: bool = False,
    ) -> None:
        """A heartbeat of a replica."""
        is_new = self.live.beat(
            (group, broker_id),
            self._now_ms(),
            live,
            confirm_offset=confirm_offset,
            channel=channel,
            timeout_ms=timeout_ms,
            serves_reads=serves_reads,
        )
        if is_new:
            self._elect_if_vacant(group)

    def channel_lost(self, channel: Peer) -> None:
        """A connection ended; the replicas behind it are dead."""
        if self.stopping:
            return  # this side closes it
        for group, broker_id in self.live.channel_lost(channel):
            self._died(group, broker_id, "its connection ended")

    def tick(self) -> None:
        """Let silence count, and elect wherever a master is missing."""
        for group, broker_id in self.live.tick(self._now_ms()):
            self._died(group, broker_id, "it was silent for too long")
        if self.engine.is_leader:
            for name in self.machine.groups:
                self._elect_if_vacant(name)

    def is_alive(self, group: str, broker_id: int | None) -> bool:
        """Whether a replica is, or is presumed to be, alive."""
        return broker_id is not None and broker_id in self.live.alive(group)

    def replicas(self, group: str) -> dict[int, str]:
        """Id -> address of the live replicas of a group that serve readers; its master is not among them."""
        known = self.machine.groups.get(group)
        if known is None:
            return {}
        return {
            each: known.replicas[each].address
            for each in self.live.readable(group)
            if each != known.master and each in known.replicas and known.replicas[each].address
        }

    async def propose(self, command: Command) -> Outcome:
        """A command's outcome. Raises as `Proposer.propose`."""
        return await self.proposer.propose(command)

    async def elect(self, cluster: str, group: str, broker_id: int | None, *, designated: bool) -> Outcome:
        """Elect now. Raises as `Proposer.propose`."""
        live = self.live.candidates(group)
        known = self.machine.groups.get(group)
        if known is not None and known.master is not None and self.is_alive(group, known.master):
            live.setdefault(known.master, Live())  # presumed: it holds its place and loses every comparison
        return await self._elected(ElectMaster(cluster, group, live, broker_id, designated, self._unclean))

    async def succeed(self, cluster: str, group: str, leaving: int) -> Outcome:
        """Elect another master while the present one, about to stop, still serves. Raises as `Proposer.propose` and
        `succession`."""
        return await self._elected(
            succession(self.machine.groups.get(group), cluster, group, leaving, self.live.candidates(group))
        )

    async def _elected(self, command: ElectMaster) -> Outcome:
        outcome, group = await self.propose(command), command.group
        if outcome.code == 0:
            self.counters.won += 1
            assert outcome.view is not None
            self._log.info("master_elected", broker=group, id=outcome.view.master, epoch=outcome.view.master_epoch)
        elif outcome.changed:
            self._log.warning("no_master", broker=group, reason=outcome.remark)
        return outcome

    async def stop(self) -> None:
        """Cancel all elections."""
        tasks = list(self._electing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _leadership(self, leading: bool) -> None:
        self._log.info("leadership", leading=leading, node=self.engine.node_id)
        if not leading:
            return
        for name, group in self.machine.groups.items():
            for broker_id, replica in group.replicas.items():
                if replica.address:
                    self.live.presume((name, broker_id), self._now_ms())

    def _died(self, group: str, broker_id: int, reason: str) -> None:
        self._log.warning("replica_died", broker=group, id=broker_id, reason=reason)
        self._elect_if_vacant(group)

    def _elect_if_vacant(self, name: str) -> None:
        group = self.machine.groups.get(name)
        if group is None or not self.engine.is_leader or name in self._electing or not self._wants_election(group):
            return
        task = asyncio.get_running_loop().create_task(self._elect_by_itself(group))
        self._electing[name] = task

    def _wants_election(self, group: ReplicaGroup) -> bool:
        if group.master_epoch == 0 or self.is_alive(group.name, group.master):
            return False
        if group.master is not None:
            return True
        members = group.replicas if self._unclean else group.in_sync
        blocked = group.needs_operator and not self._unclean
        return not blocked and any(
            each in members and group.replicas[each].address for each in self.live.candidates(group.name)
        )

    async def _elect_by_itself(self, group: ReplicaGroup) -> None:
        try:
            outcome = await self.elect(group.cluster, group.name, None, designated=False)
            if outcome.code != 0:
                self.counters.failed += 1
        except (NotLeading, ConsensusFailed, Refused) as error:
            self.counters.failed += 1
            self._log.warning("election_failed", broker=group.name, error=str(error))
        finally:
            del self._electing[group.name]
