"""A broker as a member of its group: one port, one log, and the role the controllers give it.

    fenced / replica   the log is open as a replica's, `HaClient` copies the master's; ranges of confirmed records are
                       served (`replica_reads`), every other request gets NOT_MASTER
    master(epoch)      the log is open for that epoch, `Serving` answers, `HaServer` sends it to the replicas

What a change of role takes, and in which order, is decided by `group_node` and carried out by `role_queue`; what that
is for sockets and files is here.
Invariants: at most one store is open, in one role; what answers requests or replicas exists only while it is open.
Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.access.replica import ReplicaUsers
from broker.acting.replica import ActingReplica
from broker.metrics import watch_store
from broker.replication.follower import ReplicaIdentity
from broker.replication.ha_client import HaClient
from broker.replication.ha_server import HaServer
from broker.replication.leader import Leader
from broker.roles.election_manager import ElectionManager
from broker.roles.election_members import MODE as ELECTS_ITSELF
from broker.roles.election_seat import ElectionSeat
from broker.roles.group_node import (
    Action,
    ClosePorts,
    DamageFound,
    EndRole,
    Event,
    LogOpened,
    OpenLog,
    RoleEnded,
    StaysMaster,
    Unfollow,
)
from broker.roles.group_requests import GroupRequests
from broker.roles.master import HandingOver, MasterOfGroup
from broker.roles.member_log import MemberLog, Standing
from broker.roles.member_state import (
    declare_metrics,
    epoch_cache,
    high_availability,
    picture,
    readiness,
    unready_reason,
)
from broker.roles.replica_reads import ReplicaReads
from broker.roles.replicas_manager import ReplicasManager
from broker.roles.role_queue import RoleActions
from broker.roles.serving import ClientPort, RoleGate, Serving, giving_up, peers_closer
from broker.roles.steps import KnownGroup
from broker.store.log_store import LogStore
from remoting.access.rights import REGISTER
from remoting.client.connection import read_signer
from remoting.client.tls import ClientTls
from remoting.protocol.addresses import join_address
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access, parse_access_keys
from remoting.transport.certificates import ServerTls
from remoting.transport.contracts import Dial, Handler, Peer
from runtime.metrics import declare_port_metrics

if TYPE_CHECKING:
    from broker.broker import BrokerParts
    from broker.config import BrokerConfig, ReplicationConfig
    from runtime.clock import Clock
    from runtime.faults import FaultPoints
    from runtime.metrics import Registry


def is_present(settings: ReplicationConfig) -> bool:
    """Whether replicas are to be known to the name servers: they may stand in, or serve readers without controllers.

    Controllers know the replicas of their groups by themselves.
    """
    named = settings.mode == ELECTS_ITSELF and settings.replica_reads
    return (settings.acting_master or named) and not settings.learner


class MemberHost:
    """A member's log, streams, ports and clients, for its `RoleActions`."""

    def __init__(
        self,
        config: BrokerConfig,
        data: MemberLog,
        gate: RoleGate,
        clients: ClientPort,
        replicas: HaServer,
        manager: ReplicasManager | ElectionManager,
        make_serving: Callable[..., Serving],
        failed: Callable[[Exception], None],
        log: Any,
    ) -> None:
        self.serving: Serving | None = None
        """What answers requests, from `lead` until the role has ended."""
        self.stops = False
        """Whether the process is to end: it stands in for no master any more."""
        self._config, self._data, self._gate, self._clients, self._replicas = config, data, gate, clients, replicas
        self._manager, self._make_serving, self._failed, self._log = manager, make_serving, failed, log
        self._master: MasterOfGroup | None = None

    @property
    def _reads(self) -> ReplicaReads:
        assert self._gate.reads is not None
        return self._gate.reads

    @property
    def _store(self) -> LogStore:
        assert self._data.store is not None
        return self._data.store

    @property
    def _broker_id(self) -> int:
        assert self._manager.steps.broker_id is not None
        return self._manager.steps.broker_id

    # -- as the master -------------------------------------------------------------------------------------------------

    def lead(self, view: KnownGroup) -> MasterOfGroup:
        """Make what leads, and everything that will answer clients."""
        manager, store, clients = self._manager, self._store, self._clients
        self._master = master = MasterOfGroup(
            self._config, self._broker_id, view, store, self._replicas.streams, manager, self._log,
            pauses=manager.pauses, doubt=self._gate.doubt, stay=partial(manager.queue.feed, StaysMaster()),
        )  # fmt: skip
        self.serving = serving = self._make_serving(store, may_answer=manager.pauses.may_answer)
        serving.tell_address(clients.host, clients.port)
        if self._config.replication.replica_reads:
            serving.broker.tools.identity.is_replica_read = master.has_replica
        return master

    def serve(self, epoch: int) -> None:
        """Hand the requests of clients to what answers them."""
        assert self.serving is not None
        assert self._master is not None
        self.serving.start()
        refusal, may_answer = self._master.admission.refusal, self._manager.pauses.may_answer
        self._gate.serve(self.serving.handlers, epoch, refusal, may_answer)

    def announce(self) -> None:
        """Tell clients and controllers the address."""
        serving, acting = self.serving, self._reads.acting
        assert serving is not None
        serving.announce(self._clients.host, self._clients.port, self._config.controllers)
        if acting is not None:
            acting.lead(serving.broker.merges)

    def suspend(self) -> None:
        """Stand in for no master any more, and let requests wait: this broker is about to be it."""
        if self._reads.acting is not None:
            self._reads.acting.step_aside()
        self._gate.suspend("this broker is about to be the master")

    def give_up(self, address: str, epoch: int) -> None:
        """Answer what is still to be answered."""
        if self.serving is not None:
            self.serving.give_up(giving_up(address, epoch))

    def refuse(self, address: str, epoch: int) -> None:
        """Answer nothing as a master any more."""
        self._gate.refuse(address, epoch)

    # -- as a replica --------------------------------------------------------------------------------------------------

    def follow(self, view: KnownGroup, epoch: int) -> HaClient:
        """Begin to copy the master's log."""
        config = self._config
        client = HaClient(
            self._store, self._identity(), view.ha_address, epoch,
            silence_ms=config.replication.stream_silence_limit_ms, superseded=self.superseded, failed=self._failed,
            log=self._log, tls=ClientTls.of(config.dial_tls),
        )  # fmt: skip
        client.start()
        return client

    def _identity(self) -> ReplicaIdentity:
        """What this replica tells its master of itself."""
        config = self._config
        signer = read_signer(config.access_key_file) if config.access_key_file is not None else None
        return ReplicaIdentity(
            broker=self._broker_id, cluster=config.cluster_name, group=config.broker_name,
            is_learner=config.replication.learner or not self._manager.is_counted,
            access_key=signer.access_key if signer is not None else "",
            secret=signer.secret if signer is not None else None,
        )  # fmt: skip

    def fenced_below(self, epoch: int) -> int:
        """The epoch that the master of `epoch` is told."""
        return self._manager.fenced_below(epoch)

    def superseded(self, epoch: int) -> None:
        """A peer knows of a newer epoch than ours: the controllers know who leads in it."""
        self._log.warning("newer_epoch_heard", epoch=epoch)
        self._manager.ask_again()

    def unreachable(self, address: str) -> None:
        """The master cannot be followed until it tells where."""
        self._log.warning("master_tells_no_replication_address", address=address)

    # -- in any role ---------------------------------------------------------------------------------------------------

    def close_log(self) -> None:
        """Close the log and what reads it."""
        self._reads.close()
        self._data.close()

    def damaged_at(self) -> int | None:
        """Where the log's first damage begins."""
        return self._store.replica.sound_end if self._store.quarantined else None

    def lost_something(self) -> None:
        """The log has lost something."""
        self._manager.lost_something()

    def finish(self) -> None:
        """A role is taken; a broker that is not the master stands by."""
        self.follow_users(follow=self.serving is None)
        if self.serving is None:
            self.stand_by()

    def stand_by(self) -> None:
        """As a replica be ready to stand in for the master, and give it what was kept for it."""
        steps = self._manager.steps
        if self._reads.acting is not None and not self.stops:
            number = steps.broker_id if steps.is_applied else None
            here = addresses(self._config, self._clients, self._replicas)[0]
            self._reads.acting.stand_by(None if number is None else (number, here))

    def follow_users(self, *, follow: bool) -> None:
        """As a replica follow the users that the controllers hold; a master's come from its log."""
        users = self._gate.users
        if users is not None:
            (users.start if follow else users.stop)()


def addresses(config: BrokerConfig, clients: ClientPort, replicas: HaServer) -> tuple[str, str]:
    """Where clients and replicas reach this broker."""
    advertised = config.replication.advertised_address
    return join_address(clients.host, clients.port), advertised or join_address(clients.host, replicas.port)


class GroupMember:
    """One broker of a group from its start to its stop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        registry: Registry,
        faults: FaultPoints,
        connect: Dial,
        access: Access,
        authorizer: Authorizer,
        failed: Callable[[Exception], None],
        log: Any,
    ) -> None:
        self.config = config
        self._data = MemberLog(config, clock, faults, log, failed)
        make_serving = partial(
            Serving, config, clock=clock, registry=registry, log=log, connect=connect, authorizer=authorizer
        )
        self._registry, self._log = registry, log
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopped = False
        always: dict[int, Handler] = {
            Code.NOTIFY_BROKER_ROLE_CHANGED: self._role_pushed,
            Code.GET_BROKER_EPOCH_CACHE: lambda _peer, command: command.reply(body=epoch_cache(self)),
            Code.GET_BROKER_HA_STATUS: lambda _peer, command: command.reply(body=high_availability(self)),
            Code.ELECTION: self._election_asked,
        }
        if config.replication.mode == ELECTS_ITSELF:
            always |= GroupRequests(self, authorizer).handlers()
        self.gate = RoleGate(always, access, peers_closer(lambda: self.clients.peers), authorizer, config.broker_name)
        self.gate.reads = ReplicaReads(config, clock, registry, log, authorizer)
        self.clients: ClientPort = ClientPort(config, self.gate, access, log)
        declare_port_metrics(registry, self.clients.server)
        self.replicas = HaServer(
            clock, log, keys=parse_access_keys(config.access_keys), open_to_all=config.open_to_all,
            superseded=self._superseded, tls=ServerTls.of(config.tls),
            permitted=lambda key: authorizer.permits(key, REGISTER, config.broker_name),
        )  # fmt: skip
        self.manager: ReplicasManager | ElectionManager
        if config.replication.mode == ELECTS_ITSELF:
            self.manager = ElectionManager(
                config, self, ElectionSeat(self), connect=connect, addresses=self._addresses, failed=failed, log=log
            )
        else:
            self.manager = ReplicasManager(
                config, self, connect=connect, addresses=self._addresses, failed=failed, log=log
            )
        self._host = MemberHost(
            config, self._data, self.gate, self.clients, self.replicas, self.manager, make_serving, failed, log
        )
        self._actions: RoleActions[HaClient, MasterOfGroup] = RoleActions(self._host, self.replicas.streams)
        controllers = self.manager.controllers
        if is_present(config.replication):
            self._reads.acting = ActingReplica(
                config, controllers, store=lambda: self.store, epoch=lambda: self.manager.steps.epoch,
                master_heard=self._hears_master, master=self._other_master, authorizer=authorizer, connect=connect,
                log=log,
            )  # fmt: skip
        self.gate.users = ReplicaUsers(config, authorizer, controllers, self.manager.knows_leader, registry, log)
        declare_metrics(registry, self)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> int:
        """Recover the log as a replica's, open both ports, ask for a role; returns the port for clients."""
        await self.manager.queue.start()
        await self.replicas.start(self.config.host, self.config.replication.port)
        port = await self.clients.start()
        self._reads.tell_address(self.clients.host, port)
        self.manager.start()
        if self._reads.acting is not None:
            self._reads.acting.start()
            self._host.stand_by()
        return port

    async def stop(self) -> None:
        """Give the role up, close ports and log; more than once is fine."""
        if self._stopped:
            return
        self._stopped = self._host.stops = True
        self._host.follow_users(follow=False)
        address, epoch = await self._hand_over()
        if self._reads.acting is not None:
            await self._reads.acting.stop()
        await self.manager.stop()
        await self.manager.queue.stop(address, epoch)
        if self._data.is_whole:
            self.manager.stopped_clean()

    async def _hand_over(self) -> tuple[str, int]:
        """Let another broker in sync be the master first, if this one is; the master's address, if known, and epoch."""
        manager, master, now_ms = self.manager, self.master, self.replicas.streams.now_ms
        began_ms = now_ms()
        if master is not None and self.gate.serving and master.term.has_successor():
            assert self.serving is not None
            why_not = await HandingOver(master, self.gate, self.serving.settle, manager).run()
            if why_not:
                self._log.warning("not_handed_over", error=why_not)
        address, view = self._other_master(), manager.steps.view
        if view is None or not address:
            return "", manager.steps.epoch
        if master is not None:
            took_ms = now_ms() - began_ms
            self._log.info("handed_over", to=view.master, address=address, epoch=view.epoch, took_ms=took_ms)
        return address, view.epoch

    def reload(self) -> None:
        """Read the certificate again."""
        self.clients.reload()
        self.replicas.acceptor.reload()

    # -- roles ---------------------------------------------------------------------------------------------------------

    async def carry_out(self, action: Action) -> Event | None:
        """Do what `GroupNode` decided; the event that it waits for, None for what is done at once."""
        client, master = self.client, self.master
        self._actions.carry_out(action)
        match action:
            case EndRole(good_bye):
                await self._end_role(client, master, good_bye=good_bye)
                return RoleEnded()
            case OpenLog(epoch):
                return LogOpened(is_damaged=await self._open(epoch))
            case Unfollow() if client is not None:
                await client.rest()
            case ClosePorts():
                await self._close_ports()
        return None

    async def _open(self, epoch: int | None) -> bool:
        """Open the log for a role; whether it has damaged parts."""
        if epoch is not None:
            self._host.follow_users(follow=False)
            return bool((await self._data.open("writer", epoch)).quarantined)
        store = await self._data.open("replica")
        watch_store(self._registry, store)
        self._reads.open(store)
        self._data.keep_up(store, self._found_damage, self._reads.maintain)
        return bool(store.quarantined)

    def _found_damage(self, store: LogStore) -> None:
        """Leave the replicas in sync; the next role cuts the damage off and takes the master's bytes again."""
        self._log.error("replica_log_damaged", position=store.replica.sound_end, end=store.end_position)
        self.manager.queue.feed(DamageFound())

    def _hears_master(self) -> bool:
        return self.client is not None and self.client.following.connected

    def _other_master(self) -> str:
        """Where another broker is the master, as it is known now; empty while there is none."""
        view = self.manager.steps.view
        return "" if view is None or view.master in (None, self.manager.steps.broker_id) else view.address

    async def _end_role(self, client: HaClient | None, master: MasterOfGroup | None, *, good_bye: bool) -> None:
        """Wait for the end of what works on the log; the log itself stays open."""
        if client is not None:
            await client.rest()
        if master is not None:
            await master.rest()
        serving, self._host.serving = self.serving, None
        if serving is not None:
            if good_bye:
                await serving.leave()
            else:
                await serving.registration.stop(good_bye=False)
                self._leaving.add(task := asyncio.get_running_loop().create_task(serving.leave()))
                task.add_done_callback(self._leaving.discard)
            await serving.rest()
        await self._data.rest()

    async def _close_ports(self) -> None:
        await self.replicas.stop()
        await self.clients.stop()
        for task in list(self._leaving):
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _superseded(self, epoch: int) -> None:
        self._host.superseded(epoch)

    # -- what others ask -----------------------------------------------------------------------------------------------

    def log_state(self) -> Standing:
        """How the log stands, also while it is closed between two roles."""
        return self._data.standing()

    @property
    def serving(self) -> Serving | None:
        """What answers requests; there while this broker is the master."""
        return self._host.serving

    @property
    def client(self) -> HaClient | None:
        """What copies the master's log."""
        return self._actions.client

    @property
    def master(self) -> MasterOfGroup | None:
        """What leads, while this broker is the master."""
        return self._actions.master

    @property
    def store(self) -> LogStore | None:
        """The open log, None between two roles."""
        return self._data.store

    @property
    def broker(self) -> BrokerParts | None:
        """What answers requests now."""
        return self.serving.broker if self.serving is not None else None

    @property
    def leader(self) -> Leader | None:
        """Who has how much of the log, at the master."""
        return self.master.leader if self.master is not None else None

    @property
    def replication_port(self) -> int:
        """Port for replicas."""
        return self.replicas.port

    @property
    def _reads(self) -> ReplicaReads:
        assert self.gate.reads is not None
        return self.gate.reads

    def readiness(self) -> dict[str, bool]:
        """Part -> whether it can do its work."""
        return readiness(self)

    def unready_reason(self) -> str:
        """Why it cannot; empty when it can."""
        return unready_reason(self)

    def status(self) -> dict[str, Any]:
        """A picture for the administration page."""
        return picture(self)

    def _addresses(self) -> tuple[str, str]:
        return addresses(self.config, self.clients, self.replicas)

    def _role_pushed(self, _peer: Peer, command: Command) -> None:
        self.manager.pushed(command)

    def _election_asked(self, peer: Peer, command: Command) -> Command:
        return self.manager.asked(peer, command)
