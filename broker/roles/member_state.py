"""What a member of a group shows: metrics, readiness with its reason, a picture, its epochs.

Invariant: looking changes nothing. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from broker.replication.leader import in_sync_of
from broker.roles.steps import RolePhase
from remoting.protocol.bodies.controller_body import (
    EpochCache,
    EpochRange,
    HaFollowing,
    HaReplica,
    HaState,
    encode_body,
)

if TYPE_CHECKING:
    from broker.acting.replica import ActingReplica
    from broker.config import BrokerConfig
    from broker.replication.ha_client import HaClient
    from broker.replication.ha_server import HaServer
    from broker.roles.election_manager import ElectionManager
    from broker.roles.master import MasterOfGroup
    from broker.roles.replicas_manager import ReplicasManager
    from broker.roles.serving import RoleGate, Serving
    from broker.store.log_store import LogStore
    from runtime.metrics import Registry

MASTER, REPLICA, FENCED = "master", "replica", "fenced"


class MemberView(Protocol):
    """What is shown of a member: its parts, those of a role None in the other one."""

    @property
    def config(self) -> BrokerConfig:
        """The options of the broker."""

    @property
    def gate(self) -> RoleGate:
        """Whether requests are answered here."""

    @property
    def manager(self) -> ReplicasManager | ElectionManager:
        """What the controllers, or the members, have decided."""

    @property
    def replicas(self) -> HaServer:
        """The port that replicas come to."""

    @property
    def store(self) -> LogStore | None:
        """The open log, None between two roles."""

    @property
    def master(self) -> MasterOfGroup | None:
        """The master's part."""

    @property
    def serving(self) -> Serving | None:
        """What answers clients, at the master."""

    @property
    def client(self) -> HaClient | None:
        """The replica's part."""


def role_name(member: MemberView) -> str:
    """What the broker is now."""
    if member.gate.serving:
        return MASTER
    return REPLICA if member.client is not None else FENCED


def _acting(member: MemberView, value: Callable[[ActingReplica], int]) -> int:
    acting = member.gate.reads.acting if member.gate.reads is not None else None
    return value(acting) if acting is not None else 0


def _is_role(member: MemberView, name: str) -> int:
    return int(role_name(member) == name)


def declare_metrics(registry: Registry, member: MemberView) -> None:
    """Declare what is read when the page is rendered."""
    counter, gauge = registry.counter, registry.gauge
    role = gauge("rocketmq_replica_role", "1 for the role this broker has in its group", ("role",))
    for name in (MASTER, REPLICA, FENCED):
        role.child(name, function=partial(_is_role, member, name))
    gauge("rocketmq_replica_epoch", "Newest master epoch known", function=lambda: member.manager.steps.epoch)
    counter(
        "rocketmq_replica_role_changes_total",
        "Roles taken since the start",
        function=lambda: member.manager.queue.node.changes,
    )
    gauge(
        "rocketmq_replica_controllers_up",
        "Controllers this broker has a connection to",
        function=lambda: member.manager.controllers.reachable,
    )
    counter(
        "rocketmq_replica_not_master_answers_total",
        "Requests answered with NOT_MASTER since the start",
        function=lambda: member.gate.refused,
    )
    counter(
        "rocketmq_replica_reads_total",
        "Requests for records that this broker answered while it was not the master",
        function=lambda: member.gate.reads.served if member.gate.reads is not None else 0,
    )
    gauge(
        "rocketmq_replica_acting",
        "1 while this broker stands in, read only, for the master of its group",
        function=lambda: float(_acting(member, lambda acting: acting.presence.acts())),
    )
    gauge(
        "rocketmq_replica_acting_entries",
        "Offsets and other entries kept while this broker stood in for the master, which no master has yet",
        function=lambda: _acting(member, lambda acting: len(acting.journal)),
    )
    gauge(
        "rocketmq_replica_lag_bytes",
        "Bytes of the master's log a replica does not have yet; the master shows the largest of its replicas",
        function=lambda: lag_bytes(member),
    )
    gauge(
        "rocketmq_replica_lag_seconds",
        "How long the replica that is furthest behind has been behind",
        function=lambda: lag_ms(member) / 1_000,
    )
    member.replicas.streams.on_acknowledged = registry.histogram(
        "rocketmq_replication_acknowledge_seconds",
        "From sending the end of the log to a replica until it acknowledged it; one end at a time and replica",
    ).observe
    _declare_group(registry, member)


def _declare_group(registry: Registry, member: MemberView) -> None:
    """Declare what the group and the log are like."""
    counter, gauge = registry.counter, registry.gauge
    gauge("rocketmq_replica_in_sync", "Brokers in the SyncStateSet of the master", function=lambda: in_sync(member))
    counter(
        "rocketmq_replica_sync_state_set_changes_total",
        "Changes of the SyncStateSet in this master's epoch",
        function=lambda: 0 if member.master is None else member.master.in_sync.changes,
    )
    counter(
        "rocketmq_replica_in_sync_refusals_total",
        "Requests refused in this master's epoch because too few replicas were in sync",
        function=lambda: 0 if member.master is None else member.master.admission.refused,
    )
    counter(
        "rocketmq_replica_unconfirmed_refusals_total",
        "Requests refused in this master's epoch because too much of the log waited for the replicas",
        function=lambda: 0 if member.master is None else member.master.admission.refused_full,
    )
    counter(
        "rocketmq_replica_sent_bytes_total",
        "Log bytes sent to replicas",
        function=lambda: member.replicas.streams.sent_bytes,
    )
    counter(
        "rocketmq_replica_unproven_refusals_total",
        "Connections at the replication port refused because they proved no access key, or one without the role",
        function=lambda: member.replicas.streams.admission.unproven,
    )
    counter(
        "rocketmq_replica_cut_bytes_total",
        "Confirmed bytes cut from this broker's log because its master does not have them; 0 in the safe mode",
        function=lambda: 0 if member.client is None else member.client.following.log_copy.lost_confirmed_bytes,
    )

    counter(
        "rocketmq_replica_damaged_bytes_total",
        "Bytes from the first damage of this replica's log on that it gave up to take the master's again",
        function=lambda: 0 if member.client is None else member.client.following.log_copy.damaged_bytes,
    )


def lag_bytes(member: MemberView) -> int:
    """How much is missing."""
    store, client, master = member.store, member.client, member.master
    if store is None:
        return 0
    if master is not None:
        ends = [each.acknowledged for each in master.leader.replicas() if each.acknowledged >= 0]
        return max((store.end_position - end for end in ends), default=0)
    return max(0, client.following.master_end - store.end_position) if client is not None else 0


def lag_ms(member: MemberView) -> int:
    """For how long something has been missing at a replica; 0 where that is not known."""
    store, master = member.store, member.master
    if store is None or master is None:
        return 0
    leader, now_ms = master.leader, member.replicas.streams.now_ms()
    return max((each.lag_ms(store.end_position, now_ms) for each in leader.replicas()), default=0)


def in_sync(member: MemberView) -> int:
    """Members of the set; 0 at a replica, which learns of it now and then only."""
    return 0 if member.master is None else len(in_sync_of(member.master.leader))


def readiness(member: MemberView) -> dict[str, bool]:
    """Part -> whether it can do its work: a replica is ready when it follows its master."""
    store = member.store
    sound = store is not None and not store.metrics()["failed"] and not store.disk.full
    return {"store": sound, "role": not _role_reason(member)}


def unready_reason(member: MemberView) -> str:
    """Why it cannot do its work; empty when it can."""
    store = member.store
    if store is None:
        return "the log is not open"
    return str(store.refusal) if store.refusal is not None else _role_reason(member)


def _role_reason(member: MemberView) -> str:
    steps, master, client = member.manager.steps, member.master, member.client
    if member.gate.serving and master is not None:
        return "" if master.leader.accepts(member.replicas.streams.now_ms()) else master.admission.short_reason()
    if master is not None and master.term.yields:
        return "this log was opened with damage, another broker in sync is to be the master"
    if client is not None:
        return "" if client.following.connected else f"the master's log at {client.following.address} is not followed"
    if steps.stage is RolePhase.RUNNING:
        return "the group has no master"
    return f"no role yet: {steps.stage.value}"


def picture(member: MemberView) -> dict[str, Any]:
    """For the administration page."""
    steps, master, client, store = member.manager.steps, member.master, member.client, member.store
    found: dict[str, Any] = {
        "group": member.config.broker_name,
        "id": steps.broker_id,
        "role": role_name(member),
        "stage": steps.stage.name,
        "epoch": steps.epoch,
        "master_address": member.gate.master_address,
        "controller": member.manager.controllers.leader,
    } | member.manager.status()
    if store is not None:
        found |= {
            "begin": store.begin_position,
            "end": store.end_position,
            "flushed": store.positions.flushed,
            "confirmed": store.confirm_position,
            "epochs": [list(one) for one in store.replica.epochs],
        }
    if client is not None:
        found |= {
            "follows": client.following.address,
            "connected": client.following.connected,
            "behind_bytes": lag_bytes(member),
        }
    if master is not None and store is not None:
        leader, end, now_ms = master.leader, store.end_position, member.replicas.streams.now_ms()
        found |= {
            "in_sync": sorted(in_sync_of(leader)),
            "required": sorted(leader.members.effective),
            "replicas": [
                {
                    "id": each.broker,
                    "acknowledged": each.acknowledged,
                    "behind_bytes": end - max(each.acknowledged, 0),
                    "behind_ms": each.lag_ms(end, now_ms),
                    "learner": each.is_learner,
                }
                for each in leader.replicas()
            ],
        }
    return found


def epoch_cache(member: MemberView) -> bytes:
    """Body of the answer to 1007."""
    store = member.store
    entries = store.replica.epochs if store is not None else []
    end = store.end_position if store is not None else 0
    ends = [*(start for _epoch, start in entries[1:]), end] if entries else []
    ranges = [EpochRange(epoch, start, stop) for (epoch, start), stop in zip(entries, ends, strict=True)]
    config = member.config
    return encode_body(
        EpochCache(config.cluster_name, config.broker_name, member.manager.steps.broker_id or 0, ranges, end)
    )


def high_availability(member: MemberView) -> bytes:
    """Body of the answer to 907: the replicas of a master, or whom a replica follows."""
    store, master, client = member.store, member.master, member.client
    end = store.end_position if store is not None else 0
    if master is None or store is None:
        follows = HaFollowing(
            client.following.address if client is not None else "", end, member.gate.master_address != ""
        )
        return encode_body(HaState(False, end, 0, [], follows))
    committed = in_sync_of(master.leader)
    replicas = [
        HaReplica(f"broker {each.broker}", each.acknowledged, end - max(each.acknowledged, 0), each.broker in committed)
        for each in master.leader.replicas()
    ]
    return encode_body(HaState(True, end, sum(each.in_sync for each in replicas), replicas, HaFollowing()))
