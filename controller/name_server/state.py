"""The controller's metadata: broker groups and their members, topics and their queues, a key-value table.

Changes are commands that carry everything they need (no clock, no defaults looked up later), so that applying the same
ones in the same order gives the same state anywhere: `apply(command) -> events`. From the metadata the tables served to
clients are made: topic -> queues and brokers, cluster -> brokers, lists.

RocketMQ's rules: id 0 is the master. Where a group has none and allows it, the member with the lowest id acts for it,
shown as id 0 and without the write permission. A topic whose group cannot be written to is shown as read only.
A group whose brokers have all left is away, not gone: it stays, with its topics, until an operator removes it, so that
no reader takes its part of a topic for nothing, and no writer makes its topics anew elsewhere.
Invariant: a topic's queues name only broker groups that exist, a topic has at least one group; `revision` grows with
every change and with nothing else. One address is one member of its cluster.
Pure and deterministic.

Live brokers: every address has a deadline that its heartbeats move; past it, the broker is dead at the next tick.

Invariant: an address is reported dead once and then forgotten; only a new registration makes it known again. Time in
which this process stood still counts against no broker: it moves every deadline.
Pure: time is passed in as a growing number of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.structs

from controller.replicas.group import OwnPause
from remoting.protocol.bodies.controller_body import (
    MASTER_ID,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicRoute,
)


class RegisterBroker(msgspec.Struct, tag=True):
    """A broker's registration; `topics` is None when it has no list of topics."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    zone_name: str | None = None
    enable_acting_master: bool = False
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] | None = None
    reads_only: bool = False
    """A replica that serves readers, and is no broker to who asks for the brokers of the cluster."""


class RemoveMember(msgspec.Struct, tag=True):
    """A broker address left in order, or is dead."""

    cluster: str
    address: str
    reason: str


class SetWritable(msgspec.Struct, tag=True):
    """An operator takes the write permission of all of a broker's topics out of the routes, or gives it back."""

    broker_name: str
    writable: bool


class PutTopic(msgspec.Struct, tag=True):
    """Queues of one topic on some brokers."""

    topic: str
    queues: list[QueueData]


class RemoveTopic(msgspec.Struct, tag=True):
    """A topic leaves the routes, of one cluster or of all."""

    topic: str
    cluster: str | None = None


class PutKeyValue(msgspec.Struct, tag=True):
    """An entry of the key-value table."""

    namespace: str
    key: str
    value: str


class DeleteKeyValue(msgspec.Struct, tag=True):
    """An entry of the key-value table that goes."""

    namespace: str
    key: str


class RemoveGroup(msgspec.Struct, tag=True):
    """An operator removes a group without members: it leaves the routes, with its queues."""

    broker_name: str


Change = (
    RegisterBroker | RemoveMember | RemoveGroup | SetWritable | PutTopic | RemoveTopic | PutKeyValue | DeleteKeyValue
)


class Rejected(msgspec.Struct):
    """The command was not carried out; `remark` is the reason sent to the peer."""

    remark: str


class Registered(msgspec.Struct):
    """A broker address is in the routes; `first` when it was not before."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    first: bool


class MemberLeft(msgspec.Struct):
    """A broker address is no longer in the routes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    reason: str


class TopicsTouched(msgspec.Struct):
    """So many topics changed their permission or left."""

    count: int


Event = Rejected | Registered | MemberLeft | TopicsTouched


class BrokerInstance(msgspec.Struct):
    """One broker process of a group."""

    address: str
    ha_address: str = ""
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    reads_only: bool = False


class Group(msgspec.Struct):
    """One broker group: master and replicas by broker id."""

    cluster: str
    members: dict[int, BrokerInstance] = msgspec.field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False
    writable: bool = True


class Metadata(msgspec.Struct):
    """All of the state, as it is stored; keys are group name, topic and group name, namespace and key."""

    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    topics: dict[str, dict[str, QueueData]] = msgspec.field(default_factory=dict)
    key_values: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class MetadataLimits(msgspec.Struct):
    """Upper bounds of the state; a command that would exceed one is rejected."""

    brokers_max: int = 1_000
    """Of all members of groups; a group without any counts as one."""
    topics_max: int = 1_000_000
    key_values_max: int = 100_000


class MetadataState:
    """The metadata and the one way to change it."""

    def __init__(self, metadata: Metadata | None = None, limits: MetadataLimits | None = None) -> None:
        self.metadata = metadata or Metadata()
        self.revision = 0
        self._limits = limits or MetadataLimits()
        self._steps: dict[type, Callable[[Any], list[Event]]] = {
            RegisterBroker: self._register,
            RemoveMember: self._remove_member,
            RemoveGroup: self._remove_group,
            SetWritable: self._set_writable,
            PutTopic: self._put_topic,
            RemoveTopic: self._remove_topic,
            PutKeyValue: self._put_key_value,
            DeleteKeyValue: self._delete_key_value,
        }

    def apply(self, command: Change) -> list[Event]:
        """Carry out one command; what it could not do is a `Rejected` among the events, with nothing changed."""
        return self._steps[type(command)](command)

    def member_of(self, cluster: str, address: str) -> tuple[str, int] | None:
        """(group name, broker id) of an address."""
        for name, group in self.metadata.groups.items():
            if group.cluster == cluster:
                for broker_id, member in group.members.items():
                    if member.address == address:
                        return name, broker_id
        return None

    def _register(self, command: RegisterBroker) -> list[Event]:
        groups = self.metadata.groups
        group = groups.get(command.broker_name)
        rejection = self._rejection(command, group)
        if rejection is not None:
            return [Rejected(rejection)]
        events: list[Event] = []
        known = self.member_of(command.cluster, command.address)
        place = (command.broker_name, command.broker_id)
        if known is not None and known != place:
            # The same process under a new id or name: it changed its role.
            events += self._leave(*known, "it registered as another broker")
            group = groups.get(command.broker_name)
        if group is None:
            group = groups[command.broker_name] = Group(command.cluster)
        before = group.members.get(command.broker_id)
        if before is not None and before.address != command.address:
            events.append(self._left(command.broker_name, command.broker_id, "another address took its place"))
            before = None
        group.zone_name = command.zone_name
        group.enable_acting_master = command.enable_acting_master
        group.members[command.broker_id] = BrokerInstance(
            command.address, command.ha_address, command.data_version, command.reads_only
        )
        has_changed = before is None or before.data_version != command.data_version
        if has_changed:
            self.revision += 1
            self._take_topics(command, group)
        events.append(Registered(command.cluster, *place, command.address, before is None))
        return events

    def _rejection(self, command: RegisterBroker, group: Group | None) -> str | None:
        limits, metadata = self._limits, self.metadata
        if group is not None and group.cluster != command.cluster:
            away = "" if group.members else "; if none of its brokers will return: lightmq cluster forget"
            return f"broker name {command.broker_name!r} belongs to cluster {group.cluster!r}{away}"
        holder = group.members.get(command.broker_id) if group is not None else None
        if holder is None:
            members = sum(max(1, len(each.members)) for each in metadata.groups.values())
            is_back = group is not None and not group.members
            if members - is_back >= limits.brokers_max:
                return f"{limits.brokers_max} brokers are registered already (brokers_max)"
        elif holder.address != command.address:
            epoch = holder.data_version.state_version
            if command.data_version.state_version < epoch:
                return f"broker id {command.broker_id} is held by {holder.address} of epoch {epoch} now"
        if len(metadata.topics) + len(command.topics or ()) > limits.topics_max:
            fresh = sum(topic not in metadata.topics for topic in command.topics or ())
            if fresh and len(metadata.topics) + fresh > limits.topics_max:
                return f"with {fresh} more topics there were more than {limits.topics_max} (topics_max)"
        return None

    def _take_topics(self, command: RegisterBroker, group: Group) -> None:
        # Only the master, or the member acting for it, defines the topics; a replica's list may be behind.
        acting = group.enable_acting_master and command.broker_id == min(group.members)
        if command.broker_id != MASTER_ID and not acting:
            return
        topics = self.metadata.topics
        for name, config in (command.topics or {}).items():
            topics.setdefault(name, {})[command.broker_name] = queues_of(command.broker_name, config)

    def _remove_member(self, command: RemoveMember) -> list[Event]:
        known = self.member_of(command.cluster, command.address)
        return self._leave(*known, command.reason) if known is not None else []

    def _leave(self, broker_name: str, broker_id: int, reason: str) -> list[Event]:
        return [self._left(broker_name, broker_id, reason)]

    def _remove_group(self, command: RemoveGroup) -> list[Event]:
        group = self.metadata.groups.get(command.broker_name)
        if group is None:
            return []
        if group.members:
            addresses = ", ".join(sorted(member.address for member in group.members.values()))
            return [Rejected(f"the broker group {command.broker_name!r} has brokers that run: {addresses}")]
        self.revision += 1
        self._drop_group(command.broker_name)
        return []

    def _drop_group(self, broker_name: str) -> None:
        del self.metadata.groups[broker_name]
        for topic in [name for name, queues in self.metadata.topics.items() if broker_name in queues]:
            self._drop_queues(topic, broker_name)

    def _left(self, broker_name: str, broker_id: int, reason: str) -> MemberLeft:
        group = self.metadata.groups[broker_name]
        member = group.members.pop(broker_id)
        self.revision += 1
        return MemberLeft(group.cluster, broker_name, broker_id, member.address, reason)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self.metadata.topics[topic]
        del queues[broker_name]
        if not queues:
            del self.metadata.topics[topic]

    def _set_writable(self, command: SetWritable) -> list[Event]:
        group = self.metadata.groups.get(command.broker_name)
        if group is None:
            return [TopicsTouched(0)]
        if group.writable != command.writable:
            group.writable = command.writable
            self.revision += 1
        return [TopicsTouched(sum(command.broker_name in queues for queues in self.metadata.topics.values()))]

    def _put_topic(self, command: PutTopic) -> list[Event]:
        unknown = [queue.broker_name for queue in command.queues if queue.broker_name not in self.metadata.groups]
        if unknown:
            return [Rejected(f"topic {command.topic!r} names brokers that are not registered: {', '.join(unknown)}")]
        topics = self.metadata.topics
        if not command.queues or (command.topic not in topics and len(topics) >= self._limits.topics_max):
            return [Rejected(f"topic {command.topic!r} has no queues, or there are {self._limits.topics_max} topics")]
        for queue in command.queues:
            topics.setdefault(command.topic, {})[queue.broker_name] = queue
        self.revision += 1
        return [TopicsTouched(1)]

    def _remove_topic(self, command: RemoveTopic) -> list[Event]:
        queues = self.metadata.topics.get(command.topic, {})
        groups = self.metadata.groups
        names = [name for name in queues if command.cluster in (None, "", groups[name].cluster)]
        for name in names:
            self._drop_queues(command.topic, name)
        self.revision += bool(names)
        return [TopicsTouched(int(bool(names)))]

    def _put_key_value(self, command: PutKeyValue) -> list[Event]:
        table = self.metadata.key_values
        count = sum(map(len, table.values()))
        if count >= self._limits.key_values_max and command.key not in table.get(command.namespace, {}):
            return [Rejected(f"there are {count} key-value entries already (key_values_max)")]
        table.setdefault(command.namespace, {})[command.key] = command.value
        self.revision += 1
        return []

    def _delete_key_value(self, command: DeleteKeyValue) -> list[Event]:
        entries = self.metadata.key_values.get(command.namespace, {})
        if entries.pop(command.key, None) is not None:
            self.revision += 1
            if not entries:
                del self.metadata.key_values[command.namespace]
        return []


def queues_of(broker_name: str, config: TopicConfig) -> QueueData:
    """A topic of a broker as routes show it."""
    return QueueData(broker_name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)


TEMPLATE_TOPIC = "TBW102"
"""The topic whose route clients use to create topics that do not exist yet."""

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-value table that fixes the queues of ordered topics."""


Replicas = Callable[[str], Mapping[int, str]]
"""Group name -> addresses, by id, of replicas that are alive, serve readers, and register no topics."""


def no_replicas(_group: str) -> Mapping[int, str]:
    """Where every broker registers itself."""
    return {}


def topic_route(
    metadata: Metadata,
    topic: str,
    template_queue_count: int = 0,
    replicas: Replicas = no_replicas,
    *,
    as_configured: bool = False,
) -> TopicRoute | None:
    """Where the queues of a topic are, None when no broker has it.

    A group of which nobody can be reached has its queues in the answer, but no addresses: RocketMQ's clients pick one
    of a group's addresses without asking whether there is any. `as_configured`: for LightMQ's own readers, to whom a
    topic is one that a broker has; queues with the permission they have while their group has a master.
    """
    queues, groups = metadata.topics.get(topic), metadata.groups
    if queues is None and topic == TEMPLATE_TOPIC and template_queue_count > 0:
        perm, count = PERM_READ | PERM_WRITE | PERM_INHERIT, template_queue_count
        queues = {name: QueueData(name, count, count, perm) for name, group in groups.items() if group.members}
    if queues is None and not as_configured:
        queues = named_queues(metadata, topic)
    if not queues:
        return None
    brokers = [topic_broker(name, groups[name], replicas) for name in sorted(queues)]
    return TopicRoute(
        order_topic_conf=metadata.key_values.get(ORDER_TOPIC_NAMESPACE, {}).get(topic),
        queue_datas=[shown_queues(queues[name], groups[name], as_configured=as_configured) for name in sorted(queues)],
        broker_datas=[data for data in brokers if data.broker_addrs],
    )


def named_queues(metadata: Metadata, name: str) -> dict[str, QueueData]:
    """The topic that has a cluster's or a group's name, with one queue at each group of that name.

    RocketMQ's brokers have such topics: its proxy and tools look up by them where the brokers are. A first send to one
    creates it, if the brokers create topics.
    """
    named = [each for each, group in metadata.groups.items() if name in (each, group.cluster)]
    template = metadata.topics.get(TEMPLATE_TOPIC, {})
    perms = {each: template[each].perm if each in template else PERM_INHERIT for each in named}
    return {each: QueueData(each, 1, 1, perm) for each, perm in perms.items()}


def shown_queues(queues: QueueData, group: Group, *, as_configured: bool = False) -> QueueData:
    """Queues with the permission they have now."""
    if group.writable and (as_configured or MASTER_ID in group.members):
        return queues
    return msgspec.structs.replace(queues, perm=queues.perm & ~PERM_WRITE)


def topic_broker(name: str, group: Group, replicas: Replicas = no_replicas) -> BrokerData:
    """A group's addresses as a topic's route shows them: an acting master, one that registered, stands as id 0."""
    data = broker_data(name, group)
    addresses = data.broker_addrs
    if group.enable_acting_master and addresses and MASTER_ID not in addresses:
        addresses[MASTER_ID] = addresses.pop(min(addresses))
    return _joined(data, replicas(name))


def broker_data(name: str, group: Group) -> BrokerData:
    """A group's addresses by the ids they registered with."""
    addresses = {broker_id: group.members[broker_id].address for broker_id in sorted(group.members)}
    return BrokerData(group.cluster, name, addresses, group.zone_name, group.enable_acting_master)


def _joined(data: BrokerData, replicas: Mapping[int, str]) -> BrokerData:
    """The addresses of a group with those of its replicas that no registered broker has."""
    known = set(data.broker_addrs.values())
    for broker_id, address in replicas.items():
        if address not in known:
            data.broker_addrs.setdefault(broker_id, address)
    return data


def cluster_info(
    metadata: Metadata, replicas: Replicas | None = None, agreed: Mapping[str, str] | None = None
) -> ClusterInfo:
    """Every group's addresses, and the groups of every cluster; with `replicas` also of those that only read.

    A group that is away has no addresses. `agreed`: cluster by name of the groups that the controllers agreed on; those
    that have not registered here are away as well, and what topics they have is not known.
    """
    unheard = {name: cluster for name, cluster in (agreed or {}).items() if name not in metadata.groups}
    of_group = {name: group.cluster for name, group in metadata.groups.items()} | unheard
    clusters: dict[str, list[str]] = {}
    for name in sorted(of_group):
        clusters.setdefault(of_group[name], []).append(name)
    table = {name: broker_data(name, group) for name, group in metadata.groups.items()}
    table |= {name: BrokerData(cluster, name, {}) for name, cluster in unheard.items()}
    if replicas is not None:
        shown = {name: _joined(data, replicas(name)) for name, data in table.items()}
        return ClusterInfo(shown, clusters, topics_unknown=sorted(unheard))
    for name, group in metadata.groups.items():
        for broker_id, member in group.members.items():
            if member.reads_only:
                del table[name].broker_addrs[broker_id]
    return ClusterInfo(table, clusters, topics_unknown=sorted(unheard))


def member_group(metadata: Metadata, cluster: str, broker_name: str) -> BrokerMemberGroup:
    """The members of one group that are alive; none when it is not known."""
    group = metadata.groups.get(broker_name)
    if group is None or group.cluster != cluster:
        return BrokerMemberGroup(cluster, broker_name, {})
    return BrokerMemberGroup(cluster, broker_name, broker_data(broker_name, group).broker_addrs)


def topic_names(metadata: Metadata, cluster: str | None = None) -> list[str]:
    """Names of all topics, or of those with queues in one cluster."""
    if cluster is None:
        return sorted(metadata.topics)
    members = {name for name, group in metadata.groups.items() if group.cluster == cluster}
    return sorted(topic for topic, queues in metadata.topics.items() if not members.isdisjoint(queues))


def system_topic_names(metadata: Metadata) -> tuple[list[str], str | None]:
    """Topics no user made (RocketMQ lists cluster and group names among them), and any broker's address."""
    clusters = {group.cluster for group in metadata.groups.values()}
    own = {name for name in metadata.topics if name == TEMPLATE_TOPIC or name.lower().startswith("rmq_sys_")}
    first = next((member.address for group in metadata.groups.values() for member in group.members.values()), None)
    return sorted(clusters | set(metadata.groups) | own), first


def master_of(group: Group | None) -> tuple[str, str]:
    """(address, HA address) of a group's master; empty texts when there is none."""
    master = group.members.get(MASTER_ID) if group is not None else None
    return (master.address, master.ha_address) if master is not None else ("", "")


BrokerKey = tuple[str, str]
"""(cluster, address): what heartbeats name."""


@dataclass(slots=True)
class _Life:
    timeout_ms: int
    deadline_ms: int


class Liveness:
    """Deadlines of broker addresses."""

    def __init__(self, timeout_ms: int, tick_interval_ms: int = 0) -> None:
        """`tick_interval_ms`: how often `tick` is called; 0: nothing is taken for a pause of our own."""
        self._timeout_ms = timeout_ms
        self._pause = OwnPause(tick_interval_ms)
        self._lives: dict[BrokerKey, _Life] = {}

    def __contains__(self, key: BrokerKey) -> bool:
        return key in self._lives

    def __len__(self) -> int:
        return len(self._lives)

    def add(self, key: BrokerKey, now_ms: int, timeout_ms: int | None = None) -> None:
        """A broker registered; without a time limit of its own the default holds."""
        self._pause.begin(now_ms)
        limit = timeout_ms if timeout_ms is not None and timeout_ms > 0 else self._timeout_ms
        self._lives[key] = _Life(limit, now_ms + limit)

    def beat(self, key: BrokerKey, now_ms: int, timeout_ms: int | None = None) -> bool:
        """A heartbeat: False when the address is not known, so that the broker must register again."""
        life = self._lives.get(key)
        if life is None:
            return False
        if timeout_ms is not None and timeout_ms > 0:
            life.timeout_ms = timeout_ms
        life.deadline_ms = now_ms + life.timeout_ms
        return True

    def shorten(self, key: BrokerKey, now_ms: int, grace_ms: int) -> None:
        """The broker's connection broke: it has only `grace_ms` left to show itself again."""
        life = self._lives.get(key)
        if life is not None:
            life.deadline_ms = min(life.deadline_ms, now_ms + grace_ms)

    def forget(self, key: BrokerKey) -> None:
        """The broker left in order, or was refused."""
        self._lives.pop(key, None)

    def tick(self, now_ms: int) -> list[BrokerKey]:
        """The addresses whose deadline has passed; they are forgotten."""
        pause_ms = self._pause.tick(now_ms)
        if pause_ms:
            for life in self._lives.values():
                life.deadline_ms += pause_ms
        dead = [key for key, life in self._lives.items() if life.deadline_ms <= now_ms]
        for key in dead:
            del self._lives[key]
        return dead
