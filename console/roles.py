"""Who is master of each broker group and who is in sync, as the controllers say, and how that changed.

Controllers tell the present only, so changes are noted by looking, every second while somebody looks: a change is dated
by the look that saw it, and one that was undone between two looks is not seen but for its epoch. Invariant: at most
`CHANGES_MAX` changes are kept, the newest. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from console.cluster import BrokerGroupsView
from console.viewers import Viewer
from remoting.protocol.bodies.controller_body import (
    ClusterInfo,
    GroupState,
    ReplicaState,
    SyncStateData,
    decode_body,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code

CHANGES_MAX = 2_000
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


async def group_states(cluster: BrokerGroupsView, viewer: Viewer | None) -> dict[str, GroupState]:
    """Return the broker groups that the controllers elect masters for, by name."""
    try:
        answer = await cluster.ask_controller(viewer, Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]")
    except Refused:
        return {}
    return dict(sorted(decode_body(answer.body, SyncStateData).replicas_info_table.items()))


async def broker_rows(cluster: BrokerGroupsView, viewer: Viewer | None) -> list[dict[str, Any]]:
    """Return every broker group."""
    info = decode_body((await cluster.ask_controller(viewer, Code.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)
    states = await group_states(cluster, viewer)
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
        "address": address, "epoch": None, "sync_state_set": [], "sync_state_set_epoch": None, "replicas": [replica],
    }  # fmt: skip
