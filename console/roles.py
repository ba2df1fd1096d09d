"""Who is master of each broker group and who is in sync, as the controllers say, and how that changed.

Of a group whose brokers elect their master themselves its members are asked; the answer of the newest term counts, and
of that term the master's, which alone knows who has everything. Controllers and brokers tell the present only, so
changes are noted by looking, every second while somebody looks: a change is dated by the look that saw it, and one that
was undone between two looks is not seen but for its epoch. Invariant: at most `CHANGES_MAX` changes are kept, the
newest. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from console.cluster import BrokerGroupsView
from console.viewers import Viewer
from remoting.protocol.bodies.controller_body import (
    WITH_REPLICAS_FIELD,
    ClusterInfo,
    GroupState,
    ReplicaState,
    SyncStateData,
    decode_body,
)
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code

CHANGES_MAX = 2_000
LOOK_S = 2.0
"""How long a member may take to tell of its group; one that takes longer, as it stands still, is not waited for."""
CONTROLLED, ELECTED = "controller", "dledger"
"""Who chooses the master of a group: the controllers, or its brokers."""
NOTED = ("state", "master", "address", "epoch", "sync_state_set", "sync_state_set_epoch")


class RoleHistory:
    """The changes of roles that were seen."""

    def __init__(self) -> None:
        self.changes: deque[dict[str, Any]] = deque(maxlen=CHANGES_MAX)
        """The oldest first."""
        self._last: dict[str, tuple[Any, ...]] = {}

    def note(self, rows: list[dict[str, Any]], now_ms: int) -> None:
        """Compare the groups with those of the look before."""
        for row in rows:
            now = tuple(row[name] for name in NOTED)
            if self._last.get(row["name"]) != now:
                self._last[row["name"]] = now
                self.changes.append({"time_ms": now_ms, "name": row["name"], **{name: row[name] for name in NOTED}})


async def known_brokers(cluster: BrokerGroupsView, viewer: Viewer | None) -> ClusterInfo:
    """Return the addresses of every broker group, those of replicas among them."""
    fields = {WITH_REPLICAS_FIELD: "true"}
    return decode_body((await cluster.ask_controller(viewer, Code.GET_BROKER_CLUSTER_INFO, fields)).body, ClusterInfo)


async def group_states(cluster: BrokerGroupsView, viewer: Viewer | None, info: ClusterInfo) -> dict[str, GroupState]:
    """Return the broker groups that have a master elected, by controllers or by themselves, by name."""
    try:
        answer = await cluster.ask_controller(viewer, Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]")
        states = decode_body(answer.body, SyncStateData).replicas_info_table
    except Refused:
        states = {}
    others = {name: data for name, data in info.broker_addr_table.items() if name not in states}
    elected = await asyncio.gather(
        *(_elected(cluster, viewer, name, data.broker_addrs.values()) for name, data in others.items())
    )
    states |= {name: state for name, state in zip(others, elected, strict=True) if state is not None}
    return dict(sorted(states.items()))


async def _elected(
    cluster: BrokerGroupsView, viewer: Viewer | None, name: str, addresses: Iterable[str]
) -> GroupState | None:
    """Return a group that elects its master itself, as its master knows it, or a member; None for any other."""
    answers = await asyncio.gather(*(_group_at(cluster, viewer, name, address) for address in addresses))
    known = [state for state in answers if state is not None and state.elects_itself]
    return max(known, key=lambda state: (state.master_epoch, len(state.in_sync_replicas)), default=None)


async def _group_at(cluster: BrokerGroupsView, viewer: Viewer | None, name: str, address: str) -> GroupState | None:
    try:
        async with asyncio.timeout(LOOK_S):
            answer = await cluster.ask_at(address, viewer, Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]")
        return decode_body(answer.body, SyncStateData).replicas_info_table.get(name)
    except (LightMQError, TimeoutError):
        return None


async def broker_rows(cluster: BrokerGroupsView, viewer: Viewer | None) -> list[dict[str, Any]]:
    """Return every broker group."""
    info = await known_brokers(cluster, viewer)
    states = await group_states(cluster, viewer, info)
    rows = [_of_group(name, state, info) for name, state in states.items()]
    for name, data in info.broker_addr_table.items():
        if name not in states:
            rows.append(_alone(name, data.cluster, data.master() or ""))
    return sorted(rows, key=lambda row: str(row["name"]))


def _of_group(name: str, state: GroupState, info: ClusterInfo) -> dict[str, Any]:
    known = sorted([*state.in_sync_replicas, *state.not_in_sync_replicas], key=lambda one: one.broker_id)
    living = sum(replica.alive for replica in state.in_sync_replicas)
    has_master = any(replica.alive and replica.broker_id == state.master_broker_id for replica in known)
    data = info.broker_addr_table.get(name)
    return {
        "name": name, "cluster": data.cluster if data is not None else "",
        "state": "no master" if not has_master else "ok" if living == len(known) else "degraded",
        "master": state.master_broker_id, "address": state.master_address or "", "epoch": state.master_epoch,
        "sync_state_set": sorted(replica.broker_id for replica in state.in_sync_replicas),
        "sync_state_set_epoch": state.sync_state_set_epoch,
        "mode": ELECTED if state.elects_itself else CONTROLLED,
        "needed": len(known) // 2 + 1 if state.elects_itself else None,
        "replicas": [_replica(replica, state) for replica in known],
    }  # fmt: skip


def _replica(replica: ReplicaState, state: GroupState) -> dict[str, Any]:
    return {
        "id": replica.broker_id, "address": replica.broker_address, "alive": replica.alive,
        "role": "master" if replica.broker_id == state.master_broker_id else "replica",
        "in_sync": replica in state.in_sync_replicas, "log_end": None, "behind_bytes": None, "epochs": [],
    }  # fmt: skip


def _alone(name: str, cluster: str, address: str) -> dict[str, Any]:
    replica: dict[str, Any] = {
        "id": None, "address": address, "role": "alone", "alive": True, "in_sync": True, "log_end": None,
        "behind_bytes": None, "epochs": [],
    }  # fmt: skip
    return {
        "name": name, "cluster": cluster, "state": "alone" if address else "no master", "master": None,
        "address": address, "epoch": None, "sync_state_set": [], "sync_state_set_epoch": None, "mode": None,
        "needed": None, "replicas": [replica] if address else [],
    }  # fmt: skip
