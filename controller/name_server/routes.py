"""The tables served to clients, made from the metadata: topic -> queues and brokers, cluster -> brokers, lists.

Rules (RocketMQ's): id 0 is the master. Where a group has none and allows it, the member with the lowest id acts for it,
shown as id 0 and without the write permission. A topic of a group that nobody can write to is shown as read only.
Pure: reads the metadata, changes nothing.
"""

from __future__ import annotations

import msgspec.structs

from controller.name_server.state import Group, Metadata
from remoting.protocol.bodies.route_body import (
    MASTER_ID,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRoute,
)

TEMPLATE_TOPIC = "TBW102"
"""The topic whose route tells clients where topics that do not exist yet may be created."""

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-value table that fixes the queues of ordered topics."""


def topic_route(metadata: Metadata, topic: str, template_queue_count: int = 0) -> TopicRoute | None:
    """Where the queues of a topic are, None when no broker has it."""
    queues = metadata.topics.get(topic)
    if queues is None and topic == TEMPLATE_TOPIC and template_queue_count > 0:
        perm = PERM_READ | PERM_WRITE | PERM_INHERIT
        queues = {name: QueueData(name, template_queue_count, template_queue_count, perm) for name in metadata.groups}
    if not queues:
        return None
    return TopicRoute(
        order_topic_conf=metadata.key_values.get(ORDER_TOPIC_NAMESPACE, {}).get(topic),
        queue_datas=[shown_queues(queues[name], metadata.groups[name]) for name in sorted(queues)],
        broker_datas=[topic_broker(name, metadata.groups[name]) for name in sorted(queues)],
    )


def shown_queues(queues: QueueData, group: Group) -> QueueData:
    """Queues with the permission they have now."""
    if group.writable and MASTER_ID in group.members:
        return queues
    return msgspec.structs.replace(queues, perm=queues.perm & ~PERM_WRITE)


def topic_broker(name: str, group: Group) -> BrokerData:
    """A group's addresses as a topic's route shows them: an acting master stands as id 0."""
    data = broker_data(name, group)
    addresses = data.broker_addrs
    if group.enable_acting_master and MASTER_ID not in addresses:
        addresses[MASTER_ID] = addresses.pop(min(addresses))
    return data


def broker_data(name: str, group: Group) -> BrokerData:
    """A group's addresses by the ids they registered with."""
    addresses = {broker_id: group.members[broker_id].address for broker_id in sorted(group.members)}
    return BrokerData(group.cluster, name, addresses, group.zone_name, group.enable_acting_master)


def cluster_info(metadata: Metadata) -> ClusterInfo:
    """Every group's addresses, and the groups of every cluster."""
    clusters: dict[str, list[str]] = {}
    for name in sorted(metadata.groups):
        clusters.setdefault(metadata.groups[name].cluster, []).append(name)
    return ClusterInfo({name: broker_data(name, group) for name, group in metadata.groups.items()}, clusters)


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
