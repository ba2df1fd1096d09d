"""Request codes of the name server -> handlers, as a table that one port may share with a broker's.

The body of a broker's registration (103) has two forms:

    plain       JSON {topicConfigSerializeWrapper:{topicConfigTable, dataVersion}, filterServerList}
    compressed  zlib( i32 n, version JSON | i32 count, count x (i32 n, "name read write perm filterType [attributes]")
                      | i32 n, filter servers JSON | ... )                                             big-endian

A change of the key-value table (100, 101, 102, 219) is answered, and visible, only after it is on disk, so that a
restart never takes back what an answer has shown.
Invariant: malformed input raises RemoteViolation or a refusal that names the field; an inflated body never exceeds its
limit. Loop rule: handlers run on the loop's thread; the answer to a change follows later.
"""

from __future__ import annotations

import operator
import struct
import zlib
from typing import cast

import msgspec

from controller.authority import guarded
from controller.control_plane.control_plane import ControlPlane
from controller.control_plane.controller_api import update_configuration, watch
from controller.name_server import state
from controller.name_server.name_server import NameServer
from controller.name_server.smallest_ids import SmallestIds
from remoting.access.rights import LOCATE
from remoting.protocol.bodies.controller_body import (
    AS_CONFIGURED_FIELD,
    MASTER_ID,
    READS_ONLY_FIELD,
    WITH_REPLICAS_FIELD,
    DataVersion,
    Heartbeat,
    KeyValueTable,
    MemberGroupBody,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRoute,
    decode_body,
    encode_body,
    from_fields,
)
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer
from runtime.config import keys_of

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""Largest inflated body: about half a million topics."""

_I32 = struct.Struct(">i")
_CRC_MASK = 0x7FFF_FFFF
_WORDS_MIN = 5
_DEFLATED = b"\x78"
"""What a zlib stream begins with, and no JSON object does."""


def decode_registration(body: bytes, *, compressed: bool, crc32: int = 0) -> TopicConfigTable | None:
    """Topics and version of a registration, None when the body is empty; `crc32` 0 is not checked.

    RocketMQ 5's brokers declare compressed bodies as uncompressed, so the body's own first byte counts as well.
    """
    if crc32 != 0 and zlib.crc32(body) & _CRC_MASK != crc32:
        raise RemoteViolation("the body's checksum is not the one in bodyCrc32")
    if not body:
        return None
    if compressed or body.startswith(_DEFLATED):
        return _decode_inflated(_inflate(body))
    return decode_body(body, RegisterBrokerBody).topic_config_serialize_wrapper


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteViolation(f"the compressed body cannot be inflated: {error}") from error
    if not inflater.eof:
        raise RemoteViolation(f"the compressed body is cut off or above {INFLATED_BYTES_MAX} bytes")
    return data


def _decode_inflated(data: bytes) -> TopicConfigTable:
    version_json, at = _block(data, 0)
    if at + _I32.size > len(data):
        raise RemoteViolation("the inflated body ends before its topics")
    count = int(_I32.unpack_from(data, at)[0])
    at += _I32.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        line, at = _block(data, at)
        config = _topic(line)
        topics[config.topic_name] = config
    return TopicConfigTable(topics, decode_body(version_json, DataVersion))


def _block(data: bytes, at: int) -> tuple[bytes, int]:
    if at + _I32.size > len(data):
        raise RemoteViolation("the inflated body is cut off")
    size = int(_I32.unpack_from(data, at)[0])
    start = at + _I32.size
    if size < 0 or start + size > len(data):
        raise RemoteViolation(f"a part of {size} bytes does not fit the inflated body")
    return data[start : start + size], start + size


def _topic(line: bytes) -> TopicConfig:
    try:
        words = line.decode().split(" ", _WORDS_MIN)
        if len(words) < _WORDS_MIN:
            raise RemoteViolation(f"topic {line!r} has {len(words)} of its {_WORDS_MIN} words")
        name, read, write, perm, filter_type = words[:_WORDS_MIN]
        attributes = msgspec.json.decode(words[_WORDS_MIN], type=dict[str, str]) if len(words) > _WORDS_MIN else None
        return TopicConfig(name, int(read), int(write), int(perm), filter_type, attributes=attributes)
    except (ValueError, msgspec.MsgspecError) as error:
        raise RemoteViolation(f"topic {line!r} cannot be read: {error}") from error


NUMBER_MAX = 2**63 - 1


def text(command: Command, name: str) -> str:
    """A required field that must not be empty."""
    value = command.fields.get(name)
    if not value:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    return value


def number(command: Command, name: str, default: int | None = None) -> int:
    """A whole number; required when there is no default."""
    value = command.fields.get(name)
    if not value:
        if default is not None:
            return default
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request {command.code} needs the field {name!r}")
    # Longer texts are no plausible number, and int() of them is slow.
    digits = value.removeprefix("-")
    if len(digits) > len(str(NUMBER_MAX)) or not (digits.isascii() and digits.isdigit()):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"field {name!r} is no number: {value[:64]!r}")
    return int(value)


def truth(command: Command, name: str) -> bool:
    """A switch as Java ("true") or C++ ("1") writes it; absent means off."""
    return command.fields.get(name, "").lower() in ("true", "1")


def key_value_handlers(name_server: NameServer) -> dict[int, Handler]:
    """The table's entries for codes 100, 101, 102 and 219."""
    api = _KeyValueApi(name_server)
    return {
        RequestCode.PUT_KV_CONFIG: api.put,
        RequestCode.GET_KV_CONFIG: api.get,
        RequestCode.DELETE_KV_CONFIG: api.delete,
        RequestCode.GET_KVLIST_BY_NAMESPACE: api.list,
    }


class _KeyValueApi:
    def __init__(self, name_server: NameServer) -> None:
        self._name_server = name_server
        self._changed_at = 0
        """The state's revision after the last change of the table."""

    def put(self, peer: Peer, command: Command) -> None:
        change = state.PutKeyValue(text(command, "namespace"), text(command, "key"), command.fields.get("value", ""))
        self._change(peer, command, change)

    def get(self, peer: Peer, command: Command) -> Command | None:
        namespace, key = text(command, "namespace"), text(command, "key")
        value = self._name_server.metadata.key_values.get(namespace, {}).get(key)
        if value is None:
            remark = f"No config item, Namespace: {namespace} Key: {key}"
            return self._shown(peer, command, command.reply(ResponseCode.QUERY_NOT_FOUND, remark))
        return self._shown(peer, command, command.reply(fields={"value": value}))

    def delete(self, peer: Peer, command: Command) -> None:
        self._change(peer, command, state.DeleteKeyValue(text(command, "namespace"), text(command, "key")))

    def list(self, peer: Peer, command: Command) -> Command | None:
        namespace = text(command, "namespace")
        entries = self._name_server.metadata.key_values.get(namespace)
        if not entries:
            remark = f"No config item, Namespace: {namespace}"
            return self._shown(peer, command, command.reply(ResponseCode.QUERY_NOT_FOUND, remark))
        return self._shown(peer, command, command.reply(body=encode_body(KeyValueTable(entries))))

    def _change(self, peer: Peer, command: Command, change: state.PutKeyValue | state.DeleteKeyValue) -> None:
        state = self._name_server.state
        before = state.revision
        self._name_server.apply(change)
        if state.revision != before:
            self._changed_at = state.revision
        later(peer, command, when_durable(self._name_server, command.reply()))

    def _shown(self, peer: Peer, command: Command, reply: Command) -> Command | None:
        """The answer to a read: at once, or when the values in it are on disk."""
        if self._name_server.persister.has(self._changed_at):
            return reply
        later(peer, command, when_durable(self._name_server, reply))
        return None


async def when_durable(name_server: NameServer, reply: Command) -> Command:
    """The reply, once the state is on disk."""
    await name_server.persister.durable()
    return reply


REGISTERED_ATTRIBUTE = "registered brokers"
"""Where a peer keeps the broker addresses that were registered on its connection."""

SECRET_KEYS = frozenset({"access_keys"})


def handlers(
    name_server: NameServer, plane: ControlPlane | None = None, authorizer: Authorizer | None = None
) -> dict[int, Handler]:
    """The whole table: code -> handler; without `plane` the name server's alone, without `authorizer` open to all."""
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
        RequestCode.FORGET_GROUP: brokers.forget_group,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: brokers.wipe_write_permission,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: brokers.add_write_permission,
        RequestCode.UPDATE_NAMESRV_CONFIG: update_configuration,
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
        self._replicas = plane.masters.replicas if plane is not None else state.no_replicas
        self._smallest = SmallestIds(name_server)

    def register(self, peer: Peer, command: Command) -> Command:
        crc32 = number(command, "bodyCrc32", 0)
        table = decode_registration(command.body, compressed=truth(command, "compressed"), crc32=crc32)
        change = state.RegisterBroker(
            text(command, "clusterName"),
            text(command, "brokerName"),
            number(command, "brokerId"),
            text(command, "brokerAddr"),
            command.fields.get("haServerAddr", ""),
            command.fields.get("zoneName"),
            truth(command, "enableActingMaster"),
            table.data_version if table is not None else DataVersion(),
            table.topic_config_table if table is not None else None,
            truth(command, READS_ONLY_FIELD),
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
            self._name_server.apply(state.RemoveMember(cluster, address, "it left in order"))
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
        # RocketMQ's tools ask every broker in the answer for its statistics, which only masters have.
        replicas = self._replicas if WITH_REPLICAS_FIELD in command.fields else None
        agreed = self._plane.clusters() if self._plane is not None else None
        info = state.cluster_info(self._name_server.metadata, replicas, agreed)
        if self._plane is not None:
            info.mqtt_group = self._plane.machine.mqtt_group
        return command.reply(body=encode_body(info))

    def forget_group(self, peer: Peer, command: Command) -> None:
        """FORGET_GROUP: a group whose brokers will not return leaves the routes, with its topics."""
        name = text(command, "brokerName")
        if self._plane is not None and name == self._plane.machine.mqtt_group:
            remark = f"MQTT is at {name!r}: move it first, see lightmq cluster mqtt"
            raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        if self._plane is not None and name in self._plane.clusters():
            remark = f"the controllers know brokers of {name!r}: remove them first, see lightmq cluster remove"
            raise Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
        self._name_server.apply(state.RemoveGroup(name))
        later(peer, command, when_durable(self._name_server, command.reply()))

    def wipe_write_permission(self, peer: Peer, command: Command) -> None:
        self._set_writable(peer, command, "wipeTopicCount", writable=False)

    def add_write_permission(self, peer: Peer, command: Command) -> None:
        self._set_writable(peer, command, "addTopicCount", writable=True)

    def configuration(self, _peer: Peer, command: Command) -> Command:
        return command.reply(body=self.settings())

    def settings(self) -> bytes:
        """The configuration without its secrets."""
        config = self._name_server.config
        names = [key for key, _, _ in keys_of(type(config)) if key not in SECRET_KEYS]
        return "".join(f"{name}={operator.attrgetter(name)(config)}\n" for name in names).encode()

    def _replica_beat(self, peer: Peer, command: Command) -> bool:
        """Whether the heartbeat comes from a replica known to the controllers."""
        if self._plane is None or number(command, "brokerId", MASTER_ID) == MASTER_ID:
            return False
        known = self._plane.masters.beat(from_fields(command.fields, Heartbeat), peer)
        if known:
            watch(self._plane.masters, peer)
        return known

    def _check_epoch(self, change: state.RegisterBroker) -> None:
        """A former master must not take its place in the routes back."""
        epoch = self._plane.fenced_epoch(change.broker_name) if self._plane is not None else 0
        if change.broker_id == MASTER_ID and change.data_version.state_version < epoch:
            raise Refused(
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"{change.broker_name} has a master of epoch {epoch}, not {change.data_version.state_version}",
            )

    def _set_writable(self, peer: Peer, command: Command, count_field: str, *, writable: bool) -> None:
        events = self._name_server.apply(state.SetWritable(text(command, "brokerName"), writable))
        count = sum(event.count for event in events if isinstance(event, state.TopicsTouched))
        reply = command.reply(fields={count_field: str(count)})
        later(peer, command, when_durable(self._name_server, reply))

    def _member(self, broker_name: str, broker_id: int, key: state.BrokerKey) -> state.BrokerInstance | None:
        if self._name_server.state.member_of(*key) != (broker_name, broker_id):
            return None
        return self._name_server.metadata.groups[broker_name].members[broker_id]

    def _watch(self, peer: Peer, key: state.BrokerKey) -> None:
        keys = cast("set[state.BrokerKey] | None", peer.attributes.get(REGISTERED_ATTRIBUTE))
        if keys is None:
            watched = keys = set()
            peer.attributes[REGISTERED_ATTRIBUTE] = watched
            peer.on_close(lambda _reason: self._connection_lost(watched, peer))
        keys.add(key)
        self._smallest.reachable(key, peer)

    def _connection_lost(self, keys: set[state.BrokerKey], peer: Peer) -> None:
        for key in keys:
            self._smallest.lost(key, peer)
            self._name_server.connection_lost(key)


class _TopicApi:
    def __init__(self, name_server: NameServer, authorizer: Authorizer) -> None:
        self._name_server = name_server
        self._authorizer = authorizer

    def route(self, _peer: Peer, command: Command) -> Command:
        topic = text(command, "topic")
        route = self._name_server.topic_route(topic, as_configured=truth(command, AS_CONFIGURED_FIELD))
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
        self._name_server.apply(state.RemoveTopic(text(command, "topic"), command.fields.get("clusterName")))
        later(peer, command, when_durable(self._name_server, command.reply()))

    def register(self, _peer: Peer, command: Command) -> Command:
        route = decode_body(command.body, TopicRoute)
        self._name_server.apply(state.PutTopic(text(command, "topic"), route.queue_datas))
        return command.reply()
