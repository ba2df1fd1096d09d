"""Controller mode put together: consensus, the agreed state, elections and pushes, started and stopped as one.

A controller without peers agrees with itself; with peers the Raft engine makes them agree. Routes follow the agreed
state: an address that is no longer the master leaves its place at once, on controllers that do not lead as well.
Controllers push roles to brokers (1008, from the leader) and routes to subscribers (9061, from each of them).
Invariant: one push per turn of the loop carries all groups that changed since the subscriber's last one; a group that
was removed is pushed with no brokers. A push promises nothing: brokers and clients poll as well.
Loop rule: all on one event loop; the machine may be applied on the engine's thread, which notifies the loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from controller.config import ControllerConfig
from controller.consensus.dledger_engine import DledgerEngine
from controller.consensus.engine import DeduplicatedMachine, Engine, Proposer, RaftSettings, SingleEngine
from controller.consensus.members import ControllerNode, parse_members, read_secret
from controller.control_plane.controller_api import controller_handlers, master_header, set_body
from controller.control_plane.masters import GroupMasters
from controller.name_server.name_server import NameServer
from controller.name_server.state import Group, RemoveGroup, RemoveMember
from controller.replicas.group import GroupView, PlaceMqtt
from controller.replicas.machine import ReplicaMachine
from remoting import background
from remoting.access.users import UserTable
from remoting.protocol.bodies.controller_body import (
    MASTER_ID,
    PushedGroup,
    PushedRoutes,
    RouteSubscription,
    decode_body,
    encode_body,
    to_fields,
)
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.router import parse_access_keys
from remoting.transport.contracts import Dial, Handler, Peer
from runtime.clock import Clock
from runtime.logs import get_logger

TOPICS_MAX = 10_000
"""Topics one subscription may name; one that names more gets every group."""
DIALS_MAX = 16
"""Fresh connections to brokers at a time; a push that would need one more is left to the broker's poll."""


class RolePushes:
    """Sends the brokers of a group the name of their master."""

    def __init__(self, masters: GroupMasters, dial: Dial) -> None:
        self._masters = masters
        self._dial = dial
        self._dialing: set[asyncio.Task[None]] = set()
        self._log = get_logger("controller")
        self.pushed = 0
        self.failed = 0

    def push(self, view: GroupView) -> None:
        """Notify every live replica, over the connection of its heartbeats or a new one."""
        for broker_id in self._masters.live.alive(view.name):
            life = self._masters.live.life((view.name, broker_id))
            address = view.addresses.get(broker_id)
            if life is not None and life.channel is not None and self._takes_pushes(view.name, broker_id):
                cast("Peer", life.channel).send(role_command(view))
                self.pushed += 1
            elif address and len(self._dialing) < DIALS_MAX:
                task = asyncio.get_running_loop().create_task(self._push_fresh(address, view))
                self._dialing.add(task)
                task.add_done_callback(self._dialing.discard)

    async def stop(self) -> None:
        """Cancel the pushes under way and wait for their end."""
        tasks = list(self._dialing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _takes_pushes(self, name: str, broker_id: int) -> bool:
        """Whether a broker takes pushes over its heartbeats' connection: LightMQ's do, and send a boot id."""
        group = self._masters.machine.groups.get(name)
        replica = group.replicas.get(broker_id) if group is not None else None
        return replica is not None and bool(replica.boot_id)

    async def _push_fresh(self, address: str, view: GroupView) -> None:
        try:
            connection = await self._dial(address)
            connection.oneway(role_command(view))
            await connection.close()
            self.pushed += 1
        except (LightMQError, OSError) as error:
            self.failed += 1
            self._log.info("role_push_failed", broker=view.name, address=address, error=str(error))


class RoutePushes:
    """Pushes the groups with new addresses to subscribers."""

    def __init__(self, name_server: NameServer, groups: Callable[[], Mapping[str, GroupView]]) -> None:
        self._name_server = name_server
        self._groups = groups
        self._subscribers: dict[Peer, tuple[frozenset[str], dict[str, PushedGroup]]] = {}
        self._due = False
        self.pushed = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    def handlers(self) -> dict[int, Handler]:
        """The table's entry of code 9060."""
        return {RequestCode.SUBSCRIBE_ROUTES: self.subscribe}

    def subscribe(self, peer: Peer, command: Command) -> Command:
        """Answer the routes as they are now and push what changes from now on."""
        topics = decode_body(command.body or b"{}", RouteSubscription).topics
        wanted = frozenset(topics if len(topics) <= TOPICS_MAX else ())
        groups = self._current(wanted)
        if peer not in self._subscribers:
            peer.on_close(lambda _reason: self._subscribers.pop(peer, None))
        self._subscribers[peer] = (wanted, groups)
        return command.reply(body=encode_body(PushedRoutes(groups)))

    def changed(self) -> None:
        """The state may have changed: compare it at the end of this turn of the loop."""
        if not self._due and self._subscribers:
            self._due = True
            asyncio.get_running_loop().call_soon(self._push)

    def _push(self) -> None:
        self._due = False
        everything = self._current(frozenset())
        for peer, (wanted, sent) in list(self._subscribers.items()):
            now = everything if not wanted else self._current(wanted)
            changed = {name: group for name, group in now.items() if sent.get(name) != group}
            changed |= {
                name: PushedGroup(group.cluster, {}, group.epoch)
                for name, group in sent.items()
                if name not in now and group.brokers
            }
            if changed:
                self._subscribers[peer] = (wanted, {**sent, **changed})
                body = encode_body(PushedRoutes(changed))
                peer.send(Command(RequestCode.ROUTES_CHANGED, flag=FLAG_ONEWAY, body=body))
                self.pushed += 1

    def _current(self, topics: frozenset[str]) -> dict[str, PushedGroup]:
        metadata, managed = self._name_server.metadata, self._groups()
        names = set(metadata.groups) | set(managed)
        if topics:
            names = {name for topic in topics for name in metadata.topics.get(topic, ())}
        return {name: pushed_group(metadata.groups.get(name), managed.get(name)) for name in sorted(names)}


def pushed_group(group: Group | None, view: GroupView | None) -> PushedGroup:
    """One group's addresses: those the controllers agreed on, else those that registered."""
    if view is not None:
        brokers = {each: address for each, address in view.addresses.items() if address and each != view.master}
        if view.master is not None:
            brokers[MASTER_ID] = view.master_address
        return PushedGroup(view.cluster, dict(sorted(brokers.items())), view.master_epoch)
    assert group is not None
    master = group.members.get(MASTER_ID)
    epoch = master.data_version.state_version if master is not None else 0
    return PushedGroup(group.cluster, {each: group.members[each].address for each in sorted(group.members)}, epoch)


def role_command(view: GroupView) -> Command:
    """1008: the present master and the replicas in sync."""
    fields = to_fields(msgspec.structs.replace(master_header(view), broker_name=view.name))
    return Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, flag=FLAG_ONEWAY, fields=fields, body=set_body(view))


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
        use_users: Callable[[UserTable], None] | None = None,
    ) -> None:
        """`use_users` puts users made by requests in force; without it this controller takes none."""
        self.members = members_of(config)
        self.machine = ReplicaMachine()
        self._config = config
        self._name_server = name_server
        self._loop = asyncio.get_running_loop()
        self._use_users = use_users
        self._replicated = DeduplicatedMachine(self.machine, self._changed_somewhere, self._users_changed_somewhere)
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
        name_server.show_replicas(self.masters.replicas)
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Restore, take part, begin to supervise the masters."""
        await self.engine.start()
        self._ticker = background.task(self._tick(), "judges which brokers live")

    async def stop(self) -> None:
        """Cancel the ticks, then stop elections, pushes and the engine, in this order."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self.masters.stop()
        await self.roles.stop()
        await self.engine.stop()

    def announce(self, host: str, port: int) -> None:
        """Where clients reach this controller; with peers it is the address in the configuration of all."""
        if not self._config.peers:
            node_id = self._config.node_id
            self.members[node_id] = ControllerNode(node_id, host, port, 0)

    def handlers(self, settings: Callable[[], bytes]) -> dict[int, Handler]:
        """The request codes of controller mode."""
        configured = None if self._use_users is None else frozenset(parse_access_keys(self._config.access_keys))
        return {
            **controller_handlers(self.masters, self.members, settings, configured, self._group_names),
            **self.routes.handlers(),
        }

    def ready(self) -> bool:
        """Whether a leader is known and its decisions have been received."""
        return self.engine.ready

    def views(self) -> dict[str, GroupView]:
        """Every group that controllers agreed on."""
        return {name: group.view() for name, group in self.machine.groups.items()}

    def clusters(self) -> dict[str, str]:
        """The cluster of every group that has had a master, by the group's name."""
        return {name: group.cluster for name, group in self.machine.groups.items() if group.master_epoch}

    def _group_names(self) -> set[str]:
        return {*self.clusters(), *self._name_server.metadata.groups}

    async def place_mqtt(self, group: str) -> None:
        """Note that MQTT is at the group of a broker in this process, where it was not decided before.

        Raises as `Proposer.propose`.
        """
        if not self.machine.mqtt_group:
            await self.proposer.propose(PlaceMqtt(group))

    def fenced_epoch(self, group: str) -> int:
        """The epoch below which no broker may act as the master of a group; 0 where controllers decide nothing."""
        known = self.machine.groups.get(group)
        return known.master_epoch if known is not None else 0

    def status(self) -> dict[str, object]:
        """A picture for the administration page."""
        return {
            "node": self.engine.node_id,
            "leader": self.engine.leader,
            "leading": self.engine.is_leader,
            "mqtt_group": self.machine.mqtt_group,
            **self.engine.status(),
            "groups": {
                name: {"master": group.master, "epoch": group.master_epoch, "in_sync": list(group.in_sync)}
                for name, group in self.machine.groups.items()
            },
        }

    def _changed_somewhere(self, view: GroupView) -> None:
        self._loop.call_soon_threadsafe(self._changed, view)

    def _users_changed_somewhere(self) -> None:
        self._loop.call_soon_threadsafe(self._users_changed)

    def _users_changed(self) -> None:
        if self._use_users is not None:
            users = self.machine.users
            self._use_users(UserTable(users.users, users.entries))

    def _changed(self, view: GroupView) -> None:
        group = self._name_server.metadata.groups.get(view.name)
        master = group.members.get(MASTER_ID) if group is not None else None
        if master is not None and master.address != view.master_address:
            self._name_server.apply(RemoveMember(view.cluster, master.address, "it is not the master any more"))
        if group is not None and not group.members and view.name not in self.machine.groups:
            self._name_server.apply(RemoveGroup(view.name))  # an operator removed its last broker
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
    settings = RaftSettings(
        config.raft_heartbeat_ms,
        config.raft_election_ms,
        config.raft_fallback_ms,
        config.propose_timeout_ms,
        config.snapshot_entries,
        config.raft_host,
    )
    secret = read_secret(config.raft_secret_file, members, config.data_directory)
    if config.raft_engine == "dledger":
        return DledgerEngine(directory, machine, members, config.node_id, secret, settings)
    from controller.consensus.raft_engine import RaftEngine

    return RaftEngine(directory, machine, members, config.node_id, secret, settings)
