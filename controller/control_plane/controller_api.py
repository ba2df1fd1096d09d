"""Request codes of controller mode (1001-1006, 1009-1013) -> handlers; a follower answers NOT_LEADER.

Reads (1004, 1006, 1012) wait for a barrier, so that no answer is older than what was answered before. 1005 is answered
by every controller from what it knows. Loop rule: handlers run on the loop's thread, answers come later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from controller.consensus.engine import ConsensusFailed, NotLeading
from controller.consensus.members import ControllerNode
from controller.control_plane.controller_requests import ControllerRequests
from controller.control_plane.masters import GroupMasters
from controller.control_plane.mqtt_group import MqttGroupRequests
from controller.control_plane.user_requests import ClusterUserRequests
from controller.replicas import group
from controller.replicas.group import GroupView, Live, Outcome, ReplicaGroup
from remoting.protocol.bodies import controller_body as body
from remoting.protocol.bodies.controller_body import (
    BrokerMemberGroup,
    Header,
    decode_body,
    encode_body,
    from_fields,
    to_fields,
)
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

WATCHED_ATTRIBUTE = "replicas watched"
"""Set on a peer whose end is already reported to the masters."""

Answer = Callable[[Peer, Command], Awaitable[Command]]


def controller_handlers(
    masters: GroupMasters,
    members: Mapping[str, ControllerNode],
    settings: Callable[[], bytes],
    configured_keys: frozenset[str] | None = None,
    groups: Callable[[], Iterable[str]] = tuple,
) -> dict[int, Handler]:
    """The table's entries of controller mode; `settings` is the configuration as code 1010 shows it.

    `configured_keys`: names that no user made by a request may have; None: users and rules are not taken. `groups`:
    the names of all broker groups.
    """
    api = _ControllerApi(masters, members)
    users, controllers = ClusterUserRequests(masters, configured_keys), ControllerRequests(masters.engine)
    mqtt = MqttGroupRequests(masters, groups)
    return {
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: api.led(api.alter),
        RequestCode.CONTROLLER_ELECT_MASTER: api.led(api.elect),
        RequestCode.CONTROLLER_REGISTER_BROKER: api.led(api.register),
        RequestCode.CONTROLLER_GET_REPLICA_INFO: api.led(api.replica_info),
        RequestCode.CONTROLLER_GET_METADATA_INFO: api.metadata,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: api.led(api.sync_state),
        RequestCode.UPDATE_CONTROLLER_CONFIG: update_configuration,
        RequestCode.GET_CONTROLLER_CONFIG: lambda _peer, command: command.reply(body=settings()),
        RequestCode.CLEAN_BROKER_DATA: api.led(api.clean),
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: api.led(api.next_broker_id),
        RequestCode.CONTROLLER_APPLY_BROKER_ID: api.led(api.apply_broker_id),
        RequestCode.AGREED_USERS: api.led(users.agreed),
        RequestCode.CHANGE_USERS: api.led(users.change),
        RequestCode.MQTT_GROUP: api.led(mqtt.tell),
        RequestCode.MOVE_MQTT: api.led(mqtt.move),
        RequestCode.LIST_CONTROLLERS: api.led(controllers.list),
        RequestCode.CHANGE_CONTROLLERS: api.led(controllers.change),
    }


def update_configuration(_peer: Peer, command: Command) -> Command:
    """Handle a change of the configuration at run time: refused."""
    remark = f"request {command.code}: the configuration is read at the start: change the file and restart"
    raise Refused(ResponseCode.NO_PERMISSION, remark)


def watch(masters: GroupMasters, peer: Peer) -> None:
    """Report the end of this connection to the masters, once however often this is called."""
    if WATCHED_ATTRIBUTE not in peer.attributes:
        peer.attributes[WATCHED_ATTRIBUTE] = True
        peer.on_close(lambda _reason: masters.channel_lost(peer))


class _ControllerApi:
    def __init__(self, masters: GroupMasters, members: Mapping[str, ControllerNode]) -> None:
        self._masters = masters
        self._members = members

    def led(self, answer: Answer) -> Handler:
        """A handler that only the leader answers itself."""

        def handle(peer: Peer, command: Command) -> Command | None:
            if not self._masters.engine.is_leader:
                return self._not_leader(command, self._masters.engine.leader)
            later(peer, command, self._answer(answer, peer, command))
            return None

        return handle

    async def alter(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_ALTER_SYNC_STATE_SET (1001): a master reports its new SyncStateSet."""
        header = from_fields(command.fields, body.AlterSyncStateSetHeader)
        given = decode_body(command.body, body.SyncStateSetBody)
        outcome = await self._masters.propose(
            group.AlterSyncStateSet(
                header.broker_name,
                header.master_broker_id,
                header.master_epoch,
                given.sync_state_set_epoch,
                tuple(given.sync_state_set),
                self._masters.live.alive(header.broker_name),
            )
        )
        epoch = outcome.view.set_epoch if outcome.view is not None else 0
        return _reply(command, outcome, body.SyncStateSetAltered(epoch), set_body(outcome.view))

    async def elect(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_ELECT_MASTER (1002): elect a master, for the asking broker or as designated."""
        header = from_fields(command.fields, body.ElectMasterHeader)
        asked_by = header.broker_id if header.broker_id != body.NO_BROKER else None
        if header.leaves:
            outcome = await self._masters.succeed(header.cluster_name, header.broker_name, header.broker_id)
        else:
            outcome = await self._masters.elect(
                header.cluster_name, header.broker_name, asked_by, designated=header.designate_elect
            )
        view = outcome.view
        if view is None:
            return _reply(command, outcome)
        elected = body.Elected(BrokerMemberGroup(view.cluster, view.name, dict(view.addresses)), list(view.in_sync))
        return _reply(command, outcome, master_header(view), encode_body(elected))

    async def register(self, peer: Peer, command: Command) -> Command:
        """1003; the elected broker must be alive."""
        header = from_fields(command.fields, body.RegisterReplicaHeader)
        outcome = await self._masters.propose(
            group.RegisterReplica(
                header.cluster_name,
                header.broker_name,
                header.broker_id,
                header.broker_address,
                header.ha_address,
                header.boot_id,
                header.last_epoch,
                header.clean_shutdown or header.sync_flush or not header.boot_id,
            )
        )
        if outcome.code != 0 or outcome.view is None:
            return _reply(command, outcome)
        watch(self._masters, peer)
        self._masters.heartbeat(header.broker_name, header.broker_id, Live(header.last_epoch, header.log_end), peer)
        alive = self._masters.is_alive(header.broker_name, outcome.view.master)
        return _reply(command, outcome, master_header(outcome.view, shown=alive), set_body(outcome.view))

    async def replica_info(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_GET_REPLICA_INFO (1004): a group's master and SyncStateSet, behind a barrier."""
        header = from_fields(command.fields, body.ReplicaInfoRequest)
        await self._masters.proposer.barrier()
        view = self._group(header.broker_name).view()
        return _reply(command, Outcome(), master_header(view), set_body(view))

    def metadata(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_GET_METADATA_INFO (1005): the leading controller, and the addresses of all."""
        engine = self._masters.engine
        leader = self._members.get(engine.leader or "")
        header = body.ControllerMetadata(
            "lightmq-controllers",
            engine.leader,
            leader.address if leader is not None else None,
            engine.is_leader,
            ";".join(f"{member.node_id}-{member.address}" for member in self._members.values()),
        )
        return command.reply(fields=to_fields(header))

    async def sync_state(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006): SyncStateSets of the named groups, or of all."""
        names = body.decode_names(command.body)
        await self._masters.proposer.barrier()
        groups = self._masters.machine.groups
        table = {name: self._state(groups[name]) for name in names or groups if name in groups}
        return command.reply(body=encode_body(body.SyncStateData(table)))

    async def clean(self, _peer: Peer, command: Command) -> Command:
        """CLEAN_BROKER_DATA (1011): forget replicas of a group; living ones only when forced."""
        header = from_fields(command.fields, body.CleanBrokerData)
        try:
            ids = tuple(int(each) for each in (header.broker_controller_ids_to_clean or "").split(";") if each)
        except ValueError as error:
            raise RemoteViolation(f"broker ids to clean: {error}") from error
        alive = self._masters.live.alive(header.broker_name)
        outcome = await self._masters.propose(
            group.CleanReplicas(
                header.cluster_name or "", header.broker_name, ids, alive, header.is_clean_living_broker
            )
        )
        if outcome.code == 0:
            for broker_id in ids or alive:
                self._masters.live.forget(header.broker_name, broker_id)
        return _reply(command, outcome)

    async def next_broker_id(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_GET_NEXT_BROKER_ID (1012): the id that the next new replica may apply for."""
        header = from_fields(command.fields, body.GroupHeader)
        await self._masters.proposer.barrier()
        next_id = self._masters.machine.next_broker_id(header.broker_name)
        return command.reply(fields=to_fields(body.NextBrokerId(header.cluster_name, header.broker_name, next_id)))

    async def apply_broker_id(self, _peer: Peer, command: Command) -> Command:
        """CONTROLLER_APPLY_BROKER_ID (1013): give an id to the holder of the check code."""
        header = from_fields(command.fields, body.ApplyBrokerIdHeader)
        outcome = await self._masters.propose(
            group.ApplyBrokerId(
                header.cluster_name, header.broker_name, header.applied_broker_id, header.register_check_code
            )
        )
        return _reply(command, outcome, body.GroupHeader(header.cluster_name, header.broker_name))

    async def _answer(self, answer: Answer, peer: Peer, command: Command) -> Command:
        try:
            return await answer(peer, command)
        except NotLeading as error:
            return self._not_leader(command, error.leader)
        except ConsensusFailed as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def _not_leader(self, command: Command, leader: str | None) -> Command:
        member = self._members.get(leader or "")
        address = member.address if member is not None and leader != self._masters.engine.node_id else None
        fields = {body.LEADER_ADDRESS_FIELD: address} if address is not None else {}
        remark = f"this controller does not lead, {address or 'no controller does now'}"
        return command.reply(ResponseCode.CONTROLLER_NOT_LEADER, remark, fields)

    def _group(self, name: str) -> ReplicaGroup:
        group = self._masters.machine.groups.get(name)
        if group is None:
            raise Refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"there is no broker group {name}")
        return group

    def _state(self, group: ReplicaGroup) -> body.GroupState:
        view, alive = group.view(), self._masters.live.alive(group.name)
        states = {
            each: body.ReplicaState(group.name, each, address, each in alive)
            for each, address in view.addresses.items()
        }
        return body.GroupState(
            view.master,
            view.master_address or None,
            view.master_epoch,
            view.set_epoch,
            [state for each, state in states.items() if each in view.in_sync],
            [state for each, state in states.items() if each not in view.in_sync],
        )


def master_header(view: GroupView, *, shown: bool = True) -> body.MasterHeader:
    """The header of 1002, 1003 and 1004; without the master when it is not to be `shown`."""
    if view.master is None or not shown:
        return body.MasterHeader(view.master_epoch, view.set_epoch)
    return body.MasterHeader(
        view.master_epoch, view.set_epoch, view.master, view.master_address, view.master_ha_address or None
    )


def set_body(view: GroupView | None) -> bytes:
    """The SyncStateSet as answers and pushes carry it."""
    return encode_body(body.SyncStateSetBody(list(view.in_sync), view.set_epoch)) if view is not None else b""


def _reply(command: Command, outcome: Outcome, header: Header | None = None, content: bytes = b"") -> Command:
    fields = to_fields(header) if header is not None else {}
    return command.reply(outcome.code, outcome.remark or None, fields, content)
