"""Headers and bodies of routes, registration and the controller's requests: JSON, and fields of commands.

Routes and registration are RocketMQ's: written by the name server and by registering brokers, read by clients; broker
ids are keys of an object, so JSON writes them as text. The controller's codes are 1001-1013, 904, 1007 and 1008, with
the routes it pushes (9060, 9061). A header is a struct whose members are the command's fields: `to_fields` and
`from_fields` convert. Members beyond RocketMQ's own (haServerAddr, lastEpoch, logEnd, bootId, cleanShutdown, syncFlush)
have defaults, so that RocketMQ's brokers and tools may leave them out. Keys on the wire are camelCase, and unknown
members are ignored, because newer peers send more.
Invariant: decoding raises RemoteViolation for malformed input, nothing else. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames import fastjson

WITH_REPLICAS_FIELD = "withReplicas"
"""Field of a request for the cluster's brokers (106) that adds the replicas of the groups that have controllers."""
AS_CONFIGURED_FIELD = "asConfigured"
"""Field of a request for a route (105): queues of a group without a master keep the permission to write (LightMQ)."""
READS_ONLY_FIELD = "readsOnly"
"""Field of a registration (103): a replica that serves readers, and never stands in for the master (LightMQ)."""
MASTER_ID = 0
"""Broker id of a master in routes."""

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
"""Topics made from this one inherit its permission; set on the template topic TBW102."""


class QueueData(msgspec.Struct, rename="camel"):
    """The number of queues of a topic at one broker, and their permissions."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(msgspec.Struct, rename="camel"):
    """The addresses of one broker group by broker id; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    zone_name: str | None = None
    enable_acting_master: bool = False

    def master(self) -> str | None:
        """Return the address of the master, or of the lowest id when it acts for a missing master."""
        if not self.broker_addrs:
            return None
        lowest = min(self.broker_addrs)
        return self.broker_addrs[lowest] if lowest == MASTER_ID or self.enable_acting_master else None


class TopicRoute(msgspec.Struct, rename="camel"):
    """Body of 105: where the queues of a topic are."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, Any] | None = msgspec.field(default_factory=dict)


class ClusterInfo(msgspec.Struct, rename="camel"):
    """Body of 106: every broker group, and the groups of each cluster. A group that is away has no addresses."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    topics_unknown: list[str] = msgspec.field(default_factory=list)
    """Groups that are away and whose topics the name server does not know (LightMQ)."""
    mqtt_group: str = ""
    """The group that has MQTT; empty where that is not decided (LightMQ)."""

    def absent(self) -> list[str]:
        """Return the groups that have no master at the moment, by name: what they hold exists all the same."""
        return sorted(name for name, data in self.broker_addr_table.items() if data.master() is None)


class DataVersion(msgspec.Struct, rename="camel"):
    """Version of a broker's topic table; `state_version` is the epoch of its master."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


class TopicConfig(msgspec.Struct, rename="camel"):
    """One topic as a broker has it."""

    topic_name: str
    read_queue_nums: int = 4
    write_queue_nums: int = 4
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicConfigTable(msgspec.Struct, rename="camel"):
    """A broker's topics with the version of the whole."""

    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(msgspec.Struct, rename="camel"):
    """Body of 103 when it is not compressed."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = msgspec.field(default_factory=list)


class BrokerMemberGroup(msgspec.Struct, rename="camel"):
    """The brokers of one group that are alive."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]


class MemberGroupBody(msgspec.Struct, rename="camel"):
    """Body of GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None = None


class TopicList(msgspec.Struct, rename="camel"):
    """Body of the topic list requests (206, 224, 304)."""

    topic_list: list[str] = msgspec.field(default_factory=list)
    broker_addr: str | None = None


class KeyValueTable(msgspec.Struct):
    """Body of 219 and of the answer to 103."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


Body = TypeVar("Body", bound=msgspec.Struct)


def encode_body(body: msgspec.Struct) -> bytes:
    """Return the body as standard JSON."""
    return msgspec.json.encode(body)


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """Return the body, from standard JSON or the form of old Java peers. Raises RemoteViolation when malformed."""
    try:
        # Not strict: some clients write numbers and booleans as text.
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(fastjson.loads(data), kind, strict=False, str_keys=True)
    except (msgspec.MsgspecError, RemoteViolation) as error:
        raise RemoteViolation(f"{kind.__name__} cannot be read: {error}") from error


NO_BROKER = -1
"""Broker id in an election that no broker requests for itself, and the master's id when there is none."""

NO_PRIORITY = 2**31 - 1
"""Election priority of a broker that has none; lower ones win."""

LEADER_ADDRESS_FIELD = "leaderAddress"
"""Field of a NOT_LEADER answer: `host:port` of the leading controller, absent when unknown."""

MASTER_ADDRESS_FIELD = "masterAddress"
MASTER_EPOCH_FIELD = "masterEpoch"
"""Fields of a NOT_MASTER answer: the master's address and epoch, empty when the broker does not know them."""
ACTING_FIELD = "actingMaster"
"""Another one, "true" of a replica that stands in for the master and answers other requests."""

BrokerId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""A broker's id at the controller; routes show the master as 0 whatever its id is."""
Epoch = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Position = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class Header(msgspec.Struct, rename="camel", frozen=True):
    """Base of all headers."""


class GroupHeader(Header, frozen=True):
    """1012, and the answer to 1013: one broker group."""

    cluster_name: str
    broker_name: str


class NextBrokerId(GroupHeader, frozen=True):
    """Answer to 1012: the id a new broker of the group may apply for."""

    next_broker_id: BrokerId


class ApplyBrokerIdHeader(GroupHeader, frozen=True):
    """1013: take an id; repeated with the same check code it succeeds again."""

    applied_broker_id: BrokerId
    register_check_code: str


class RegisterReplicaHeader(GroupHeader, frozen=True):
    """1003: a broker with an id registers its address and the state of its log at its start."""

    broker_id: BrokerId
    broker_address: str
    invoke_time: int = 0
    ha_address: str = msgspec.field(name="haServerAddr", default="")
    last_epoch: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    log_end: Position = -1
    boot_id: str = ""
    """Changes with every start of the process; empty from brokers without one."""
    clean_shutdown: bool = False
    sync_flush: bool = False


class ElectMasterHeader(GroupHeader, frozen=True):
    """1002: elect; `broker_id` requests it for itself, or is designated, or is the master that `leaves`."""

    broker_id: Annotated[int, Meta(ge=-1)] = NO_BROKER
    designate_elect: bool = False
    invoke_time: int = 0
    leaves: bool = False
    """The master is about to stop and wants another one in its place (LightMQ)."""


class AlterSyncStateSetHeader(Header, frozen=True):
    """1001: the master reports its new set; the body has it with the epoch of the set known to the master."""

    broker_name: str
    master_broker_id: BrokerId
    master_epoch: Epoch
    invoke_time: int = 0


class SyncStateSetAltered(Header, frozen=True):
    """Answer to CONTROLLER_ALTER_SYNC_STATE_SET (1001): the epoch of the set now in force."""

    new_sync_state_set_epoch: Epoch


class ReplicaInfoRequest(Header, frozen=True):
    """1004: the master of this group."""

    broker_name: str


class MasterHeader(Header, frozen=True):
    """Answer to 1002, 1003, 1004, and the push 1008: the master, if any, and the epochs; the body is the set."""

    master_epoch: Epoch
    sync_state_set_epoch: Epoch = 0
    master_broker_id: int | None = None
    master_address: str | None = None
    master_ha_address: str | None = msgspec.field(name="haAddress", default=None)
    broker_name: str | None = None
    """The group, only in the push: for brokers of several groups behind one address."""


class ControllerMetadata(Header, frozen=True):
    """Answer to 1005; peers is `n1-host:port;n2-host:port`."""

    group: str
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str = ""


class CleanBrokerData(Header, frozen=True):
    """1011: forget brokers of a group; ids as `1;2`, none means all."""

    broker_name: str
    cluster_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: int = 0


class Heartbeat(Header, frozen=True):
    """904; the timeout's name lacks an "i" on the wire (RocketMQ's own spelling)."""

    cluster_name: str
    broker_name: str
    broker_addr: str
    broker_id: int = NO_BROKER
    epoch: Annotated[int, Meta(ge=-1)] = -1
    max_offset: Position = -1
    confirm_offset: Position = -1
    heartbeat_timeout_ms: int | None = msgspec.field(name="heartbeatTimeoutMills", default=None)
    election_priority: int | None = None
    serves_reads: bool = False
    """Readers may ask this broker while it is a replica."""


class SyncStateSetBody(msgspec.Struct, rename="camel"):
    """Body of 1001, 1003, 1004 and 1008: ids of the replicas that have everything confirmed."""

    sync_state_set: list[int] = msgspec.field(default_factory=list)
    sync_state_set_epoch: int = 0


class Elected(msgspec.Struct, rename="camel"):
    """Body of the answer to 1002."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = msgspec.field(default_factory=list)


class ReplicaState(msgspec.Struct, rename="camel"):
    """One replica in the answer to 1006."""

    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool


class GroupState(msgspec.Struct, rename="camel"):
    """One group in the answer to 1006."""

    master_broker_id: int | None
    master_address: str | None
    master_epoch: int
    sync_state_set_epoch: int
    in_sync_replicas: list[ReplicaState] = msgspec.field(default_factory=list)
    not_in_sync_replicas: list[ReplicaState] = msgspec.field(default_factory=list)
    mode: str | msgspec.UnsetType = msgspec.UNSET
    """Of a group that elects its master itself: `dledger` (LightMQ)."""

    @property
    def elects_itself(self) -> bool:
        """Whether its brokers, and no controllers, decide."""
        return bool(self.mode)


class SyncStateData(msgspec.Struct, rename="camel"):
    """Body of the answer to 1006; the request's body is a JSON array of group names."""

    replicas_info_table: dict[str, GroupState] = msgspec.field(default_factory=dict)


class EpochRange(msgspec.Struct, rename="camel"):
    """One epoch of a log in the answer to 1007."""

    epoch: int
    start_offset: int
    end_offset: int


class EpochCache(msgspec.Struct, rename="camel"):
    """Body of a broker's answer to 1007."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochRange]
    max_offset: int


class HaReplica(msgspec.Struct, rename="camel"):
    """One replica in the answer to 907."""

    addr: str
    slave_ack_offset: int
    diff: int
    in_sync: bool
    transferred_byte_in_second: int = 0
    transfer_from_where: int = -1


class HaFollowing(msgspec.Struct, rename="camel"):
    """One replica in the answer to 907."""

    master_addr: str = ""
    max_offset: int = 0
    is_activated: bool = False
    transferred_byte_in_second: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HaState(msgspec.Struct, rename="camel"):
    """Body of a broker's answer to 907."""

    master: bool
    master_commit_log_max_offset: int
    in_sync_slave_nums: int
    ha_connection_info: list[HaReplica]
    ha_client_runtime_info: HaFollowing


class ControllerState(msgspec.Struct, rename="camel"):
    """One controller in the answer to 9076."""

    node_id: str
    address: str
    raft_port: int
    role: str
    """`leader`, `voter` or `learner`, which does not vote yet."""
    connected: bool
    behind: int
    """Decisions that the leader has and it does not."""
    directory: str = ""
    """Identity of its data directory; empty while it is not known."""


class ControllerList(msgspec.Struct):
    """Body of the answer to 9076."""

    controllers: list[ControllerState]
    group: str = ""
    """Identity of the group."""


class RouteSubscription(msgspec.Struct):
    """Body of 9060: topics to subscribe to; none means every group."""

    topics: list[str] = msgspec.field(default_factory=list)


class PushedGroup(msgspec.Struct):
    """One group in the answer to 9060 and in the push 9061; id 0 is the master, absent while there is none."""

    cluster: str
    brokers: dict[int, str]
    epoch: int


class PushedRoutes(msgspec.Struct):
    """Body of the answer to 9060 (all groups subscribed to) and of the push 9061 (those that changed)."""

    groups: dict[str, PushedGroup] = msgspec.field(default_factory=dict)


Kind = TypeVar("Kind", bound=Header)


def to_fields(header: Header) -> dict[str, str]:
    """Return the header as a command's fields; members that are None are left out."""
    values: dict[str, Any] = msgspec.to_builtins(header)
    return {name: _text(value) for name, value in values.items() if value is not None}


def from_fields(fields: Mapping[str, str], kind: type[Kind]) -> Kind:
    """Return the header. Raises RemoteViolation that names the field that is missing or wrong."""
    try:
        # Java writes a null as an absent field, C++ clients as an empty one.
        return msgspec.convert({name: value for name, value in fields.items() if value}, kind, strict=False)
    except msgspec.MsgspecError as error:
        raise RemoteViolation(f"{kind.__name__} cannot be read: {error}") from error


def decode_names(body: bytes) -> list[str]:
    """Return the names of broker groups in a body of 1006."""
    try:
        return msgspec.json.decode(body, type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteViolation(f"the list of broker names cannot be read: {error}") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
