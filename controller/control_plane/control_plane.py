"""Controller mode put together: consensus, the agreed state, elections and pushes, started and stopped as one.

Alone a controller agrees with itself; with peers the raft engine makes them agree. Routes follow what was agreed: an
address that is no longer the master leaves its place at once, also on controllers that do not lead.
Loop rule: made and used on one event loop; the machine may be applied on the engine's thread and tells the loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from controller.config import ControllerConfig
from controller.consensus.engine import Engine
from controller.consensus.members import ControllerNode, parse_members, read_secret
from controller.consensus.proposals import DeduplicatedMachine, Proposer
from controller.consensus.single import SingleEngine
from controller.control_plane.controller_api import controller_handlers
from controller.control_plane.masters import GroupMasters
from controller.control_plane.pushes import RolePushes, RoutePushes
from controller.name_server.changes import RemoveMember
from controller.name_server.name_server import NameServer
from controller.replicas.group import GroupView
from controller.replicas.machine import ReplicaMachine
from remoting.protocol.bodies.route_body import MASTER_ID
from remoting.protocol.errors import LocalMisuse
from remoting.transport.contracts import Dial, Handler
from runtime.clock import Clock

CONSENSUS_DIRECTORY = "consensus"
CLIENT_BYTES = 16


class ControlPlane:
    """One controller's part in deciding masters."""

    def __init__(
        self,
        config: ControllerConfig,
        clock: Clock,
        name_server: NameServer,
        dial: Dial,
    ) -> None:
        self.members = members_of(config)
        self.machine = ReplicaMachine()
        self._config = config
        self._name_server = name_server
        self._loop = asyncio.get_running_loop()
        self._replicated = DeduplicatedMachine(self.machine, self._changed_somewhere)
        self.engine = make_engine(config, self.members, self._replicated)
        self.proposer = Proposer(self.engine, secrets.token_hex(CLIENT_BYTES))
        self.masters = GroupMasters(
            clock,
            self.engine,
            self.machine,
            self.proposer,
            replica_timeout_ms=config.replica_timeout_ms,
            scan_ms=config.election_scan_ms,
            unclean=config.unclean_election,
        )
        self.roles = RolePushes(self.masters, dial)
        self.routes = RoutePushes(name_server, self.views)
        name_server.on_change(self.routes.changed)
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Restore, take part, begin to look after the masters."""
        await self.engine.start()
        self._ticker = self._loop.create_task(self._tick())

    async def stop(self) -> None:
        """Cancel the ticks, then stop elections, pushes and the engine, in this order."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self.masters.stop()
        await self.roles.stop()
        await self.engine.stop()

    def announce(self, host: str, port: int) -> None:
        """Where clients reach this controller; with peers the configuration says so to all of them."""
        if not self._config.peers:
            node_id = self._config.node_id
            self.members[node_id] = ControllerNode(node_id, host, port, 0)

    def handlers(self, settings: Callable[[], bytes]) -> dict[int, Handler]:
        """The request codes of controller mode."""
        return {**controller_handlers(self.masters, self.members, settings), **self.routes.handlers()}

    def ready(self) -> bool:
        """Whether it knows who leads and has what was decided."""
        return self.engine.ready

    def views(self) -> dict[str, GroupView]:
        """Every group that controllers agreed on."""
        return {name: group.view() for name, group in self.machine.groups.items()}

    def fenced_epoch(self, group: str) -> int:
        """The epoch below which nobody may call himself the master of a group; 0 where controllers decide nothing."""
        known = self.machine.groups.get(group)
        return known.master_epoch if known is not None else 0

    def status(self) -> dict[str, object]:
        """A picture for the administration page."""
        return {
            "node": self.engine.node_id,
            "leader": self.engine.leader,
            "leading": self.engine.is_leader,
            **self.engine.status(),
            "groups": {
                name: {"master": group.master, "epoch": group.master_epoch, "in_sync": list(group.in_sync)}
                for name, group in self.machine.groups.items()
            },
        }

    def _changed_somewhere(self, view: GroupView) -> None:
        self._loop.call_soon_threadsafe(self._changed, view)

    def _changed(self, view: GroupView) -> None:
        group = self._name_server.metadata.groups.get(view.name)
        master = group.members.get(MASTER_ID) if group is not None else None
        if master is not None and master.address != view.master_address:
            self._name_server.apply(RemoveMember(view.cluster, master.address, "it is not the master any more"))
        self.routes.changed()
        if self.engine.is_leader:
            self.roles.push(view)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.election_scan_ms / 1000)
            self.masters.tick()


def members_of(config: ControllerConfig) -> dict[str, ControllerNode]:
    """The controllers by node id; alone this one, at its own address."""
    if config.peers:
        return parse_members(config.peers, config.node_id)
    return {config.node_id: ControllerNode(config.node_id, config.host, config.port, 0)}


def make_engine(config: ControllerConfig, members: dict[str, ControllerNode], machine: DeduplicatedMachine) -> Engine:
    """The engine for so many controllers."""
    directory = config.data_directory / CONSENSUS_DIRECTORY
    if len(members) == 1:
        return SingleEngine(directory, machine, node_id=config.node_id, snapshot_entries=config.snapshot_entries)
    if config.raft_election_ms <= 3 * config.raft_heartbeat_ms:
        raise LocalMisuse("controller.raft_election_ms must be more than three times controller.raft_heartbeat_ms")
    from controller.consensus.raft_engine import RaftEngine, RaftSettings

    settings = RaftSettings(
        config.raft_heartbeat_ms,
        config.raft_election_ms,
        config.raft_fallback_ms,
        config.propose_timeout_ms,
        config.snapshot_entries,
        config.raft_host,
    )
    secret = read_secret(config.raft_secret_file, members, config.data_directory)
    return RaftEngine(directory, machine, members, config.node_id, secret, settings)
