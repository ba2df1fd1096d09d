"""JSON bodies of routes and registration, as RocketMQ's name server, brokers and clients exchange them.

Written by the name server and by registering brokers, read by clients. Keys on the wire are camelCase; broker ids are
keys of an object, so JSON writes them as text. Unknown members are ignored, because newer peers send more.
Invariant: decoding raises RemoteViolation for whatever is malformed, nothing else. Pure.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames import fastjson

MASTER_ID = 0
"""Broker id of a master in routes."""

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
"""Topics made from this one inherit its permission; set on the template topic TBW102."""


class QueueData(msgspec.Struct, rename="camel"):
    """How many queues of a topic one broker has, and what may be done with them."""

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
        """Address of the master, or of the lowest id when it acts for a missing master."""
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
    """Body of 106: every broker group, and which groups form which cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)


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
    """The body as standard JSON."""
    return msgspec.json.encode(body)


def decode_body(data: bytes, kind: type[Body]) -> Body:
    """The body of this kind, in standard JSON or as old Java peers write it; RemoteViolation when it is not one."""
    try:
        # Not strict: some clients write numbers and booleans as text.
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(fastjson.loads(data), kind, strict=False, str_keys=True)
    except (msgspec.MsgspecError, RemoteViolation) as error:
        raise RemoteViolation(f"{kind.__name__} cannot be read: {error}") from error
