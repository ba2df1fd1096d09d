"""Request codes of the name server -> handlers, as a table that one port may share with a broker's.

Loop rule: handlers run on the loop's thread.
"""

from __future__ import annotations

import operator
from typing import cast

from controller.authority import guarded
from controller.control_plane.control_plane import ControlPlane
from controller.control_plane.controller_api import watch
from controller.name_server import state
from controller.name_server.changes import (
    PutTopic,
    RegisterBroker,
    RemoveMember,
    RemoveTopic,
    SetWritable,
    TopicsTouched,
)
from controller.name_server.key_value_api import key_value_handlers, number, text, truth, when_durable
from controller.name_server.liveness import BrokerKey
from controller.name_server.name_server import NameServer
from controller.name_server.registration import decode_registration
from controller.name_server.state import BrokerInstance
from remoting.access.rights import LOCATE
from remoting.protocol.bodies.controller_body import Heartbeat, from_fields
from remoting.protocol.bodies.route_body import (
    MASTER_ID,
    DataVersion,
    KeyValueTable,
    MemberGroupBody,
    TopicList,
    TopicRoute,
    decode_body,
    encode_body,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer
from runtime.config.tables import keys_of

REGISTERED_ATTRIBUTE = "registered brokers"
"""Where a peer keeps the broker addresses that were registered on its connection."""

SECRET_KEYS = frozenset({"access_keys"})


def handlers(
    name_server: NameServer, plane: ControlPlane | None = None, authorizer: Authorizer | None = None
) -> dict[int, Handler]:
    """The whole table: code -> handler; without `plane` the name server's alone, without `authorizer` for everybody."""
    authorizer = authorizer or Authorizer()
    brokers, topics = _BrokerApi(name_server, plane), _TopicApi(name_server, authorizer)
    table: dict[int, Handler] = {
        **(plane.handlers(brokers.settings) if plane is not None else {}),
        RequestCode.REGISTER_BROKER: brokers.register,
        RequestCode.UNREGISTER_BROKER: brokers.unregister,
        RequestCode.QUERY_DATA_VERSION: brokers.query_data_version,
        RequestCode.BROKER_HEARTBEAT: brokers.heartbeat,
        RequestCode.GET_BROKER_MEMBER_GROUP: brokers.member_group,
        RequestCode.GET_BROKER_CLUSTER_INFO: brokers.cluster_info,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: brokers.wipe_write_permission,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: brokers.add_write_permission,
        RequestCode.UPDATE_NAMESRV_CONFIG: brokers.update_configuration,
        RequestCode.GET_NAMESRV_CONFIG: brokers.configuration,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: topics.route,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.all,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: topics.system,
        RequestCode.GET_TOPICS_BY_CLUSTER: topics.of_cluster,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: topics.delete,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV: topics.register,
        **key_value_handlers(name_server),
    }
    return guarded(table, authorizer, name_server.state.member_of)


class _BrokerApi:
    def __init__(self, name_server: NameServer, plane: ControlPlane | None) -> None:
        self._name_server = name_server
        self._plane = plane

    def register(self, peer: Peer, command: Command) -> Command:
        crc32 = number(command, "bodyCrc32", 0)
        table = decode_registration(command.body, compressed=truth(command, "compressed"), crc32=crc32)
        change = RegisterBroker(
            text(command, "clusterName"),
            text(command, "brokerName"),
            number(command, "brokerId"),
            text(command, "brokerAddr"),
            command.fields.get("haServerAddr", ""),
            command.fields.get("zoneName"),
            truth(command, "enableActingMaster"),
            table.data_version if table is not None else DataVersion(),
            table.topic_config_table if table is not None else None,
        )
        if change.broker_id < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"broker id {change.broker_id} is negative")
        self._check_epoch(change)
        self._name_server.register(change, number(command, "heartbeatTimeoutMillis", 0))
        self._watch(peer, (change.cluster, change.address))
        metadata = self._name_server.metadata
        fields: dict[str, str] = {}
        if change.broker_id != 0:
            master, ha_address = state.master_of(metadata.groups.get(change.broker_name))
            fields = {"masterAddr": master, "haServerAddr": ha_address}
        ordered = metadata.key_values.get(state.ORDER_TOPIC_NAMESPACE, {})
        return command.reply(fields=fields, body=encode_body(KeyValueTable(ordered)))

    def unregister(self, _peer: Peer, command: Command) -> Command:
        cluster, address = text(command, "clusterName"), text(command, "brokerAddr")
        place = self._name_server.state.member_of(cluster, address)
        if place == (text(command, "brokerName"), number(command, "brokerId")):
            self._name_server.apply(RemoveMember(cluster, address, "it left in order"))
        return command.reply()

    def query_data_version(self, _peer: Peer, command: Command) -> Command:
        given = decode_body(command.body, DataVersion)
        key = (text(command, "clusterName"), text(command, "brokerAddr"))
        member = self._member(text(command, "brokerName"), number(command, "brokerId"), key)
        changed = member is None or member.data_version != given
        if not changed:
            self._name_server.beat(key)
        body = encode_body(member.data_version) if member is not None else b""
        return command.reply(fields={"changed": str(changed).lower()}, body=body)

    def heartbeat(self, peer: Peer, command: Command) -> Command:
        key = (text(command, "clusterName"), text(command, "brokerAddr"))
        replica = self._replica_beat(peer, command)
        # The field's name lacks an "i" in this request (RocketMQ's own spelling).
        if self._name_server.beat(key, number(command, "heartbeatTimeoutMills", 0)):
            self._watch(peer, key)
        elif not replica:
            raise Refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"broker {key[1]} must register first")
        return command.reply()

    def member_group(self, _peer: Peer, command: Command) -> Command:
        group = state.member_group(
            self._name_server.metadata, text(command, "clusterName"), text(command, "brokerName")
        )
        return command.reply(body=encode_body(MemberGroupBody(group)))

    def cluster_info(self, _peer: Peer, command: Command) -> Command:
        return command.reply(body=encode_body(state.cluster_info(self._name_server.metadata)))

    def wipe_write_permission(self, peer: Peer, command: Command) -> None:
        self._set_writable(peer, command, "wipeTopicCount", writable=False)

    def add_write_permission(self, peer: Peer, command: Command) -> None:
        self._set_writable(peer, command, "addTopicCount", writable=True)

    def update_configuration(self, _peer: Peer, command: Command) -> Command:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"request {command.code}: the configuration is read at the start: change the file and restart",
        )

    def configuration(self, _peer: Peer, command: Command) -> Command:
        return command.reply(body=self.settings())

    def settings(self) -> bytes:
        """The configuration without its secrets."""
        config = self._name_server.config
        names = [key for key, _, _ in keys_of(type(config)) if key not in SECRET_KEYS]
        return "".join(f"{name}={operator.attrgetter(name)(config)}\n" for name in names).encode()

    def _replica_beat(self, peer: Peer, command: Command) -> bool:
        """Whether the heartbeat is one of a replica that the controllers know."""
        if self._plane is None or number(command, "brokerId", MASTER_ID) == MASTER_ID:
            return False
        known = self._plane.masters.beat(from_fields(command.fields, Heartbeat), peer)
        if known:
            watch(self._plane.masters, peer)
        return known

    def _check_epoch(self, change: RegisterBroker) -> None:
        """A former master must not take its place in the routes back."""
        epoch = self._plane.fenced_epoch(change.broker_name) if self._plane is not None else 0
        if change.broker_id == MASTER_ID and change.data_version.state_version < epoch:
            raise Refused(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"{change.broker_name} has a master of epoch {epoch}, not {change.data_version.state_version}",
            )

    def _set_writable(self, peer: Peer, command: Command, count_field: str, *, writable: bool) -> None:
        events = self._name_server.apply(SetWritable(text(command, "brokerName"), writable))
        count = sum(event.count for event in events if isinstance(event, TopicsTouched))
        reply = command.reply(fields={count_field: str(count)})
        later(peer, command, when_durable(self._name_server, reply))

    def _member(self, broker_name: str, broker_id: int, key: BrokerKey) -> BrokerInstance | None:
        if self._name_server.state.member_of(*key) != (broker_name, broker_id):
            return None
        return self._name_server.metadata.groups[broker_name].members[broker_id]

    def _watch(self, peer: Peer, key: BrokerKey) -> None:
        keys = cast("set[BrokerKey] | None", peer.attributes.get(REGISTERED_ATTRIBUTE))
        if keys is None:
            watched = keys = set()
            peer.attributes[REGISTERED_ATTRIBUTE] = watched
            peer.on_close(lambda _reason: self._connection_lost(watched))
        keys.add(key)

    def _connection_lost(self, keys: set[BrokerKey]) -> None:
        for key in keys:
            self._name_server.connection_lost(key)


class _TopicApi:
    def __init__(self, name_server: NameServer, authorizer: Authorizer) -> None:
        self._name_server = name_server
        self._authorizer = authorizer

    def route(self, _peer: Peer, command: Command) -> Command:
        topic = text(command, "topic")
        route = self._name_server.topic_route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, remark)
        return command.reply(body=encode_body(route))

    def all(self, peer: Peer, command: Command) -> Command:
        return self._list(peer, command, state.topic_names(self._name_server.metadata))

    def system(self, _peer: Peer, command: Command) -> Command:
        return command.reply(body=encode_body(TopicList(*state.system_topic_names(self._name_server.metadata))))

    def of_cluster(self, peer: Peer, command: Command) -> Command:
        return self._list(peer, command, state.topic_names(self._name_server.metadata, text(command, "cluster")))

    def _list(self, peer: Peer, command: Command, names: list[str]) -> Command:
        """Those of the topics whose route the peer may ask for."""
        if not self._authorizer.open:
            names = [name for name in names if self._authorizer.allows(peer, command, LOCATE, name)]
        return command.reply(body=encode_body(TopicList(names)))

    def delete(self, peer: Peer, command: Command) -> None:
        self._name_server.apply(RemoveTopic(text(command, "topic"), command.fields.get("clusterName")))
        later(peer, command, when_durable(self._name_server, command.reply()))

    def register(self, _peer: Peer, command: Command) -> Command:
        route = decode_body(command.body, TopicRoute)
        self._name_server.apply(PutTopic(text(command, "topic"), route.queue_datas))
        return command.reply()
