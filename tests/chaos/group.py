"""The group's state by its controllers or its master: which brokers are in sync, and their logs when all have ended.

Thread rule: any thread; every request has a connection of its own.
"""

from __future__ import annotations

from pathlib import Path

from lightmq.cli.admin.cluster import replicas
from lightmq.cli.connections import ServerTarget, leading_controller
from remoting.protocol.bodies.controller_body import GroupState
from remoting.protocol.errors import LightMQError
from tests.chaos.cluster import GROUP, Cluster

QUESTION_S = 2.0


def in_sync(cluster: Cluster) -> set[str]:
    """Addresses of running brokers that have everything; empty when nobody answers who knows."""
    if cluster.elects:
        return _counted(cluster)
    state = _known(cluster)
    if state is None:
        return set()
    return {
        replica.broker_address for replica in replicas(state) if replica.alive and replica in state.in_sync_replicas
    }


def broker_id(cluster: Cluster, name: str) -> int | None:
    """The id by which the controllers know a broker; None when none is known, or nobody answers."""
    state, address = _known(cluster), cluster.address(cluster.nodes[name])
    known = replicas(state) if state is not None else []
    return next((each.broker_id for each in known if each.broker_address == address), None)


def _known(cluster: Cluster) -> GroupState | None:
    """What the controllers know of the group."""
    target = ServerTarget(server=",".join(cluster.controllers), timeout=QUESTION_S)
    try:
        with leading_controller(target) as found:
            return found.groups(GROUP)[GROUP]
    except (LightMQError, OSError):
        return None


def _counted(cluster: Cluster) -> set[str]:
    """The same of a group without controllers, as its master says."""
    brokers, masters = cluster.of("broker"), []
    for node in brokers:
        try:
            member = cluster.status(node).get("member", {})
        except (OSError, ValueError):
            continue
        if member.get("role") == "master":
            masters.append((member["epoch"], member.get("in_sync", ())))
    counted = max(masters, default=(0, ()))[1]
    return {cluster.address(each) for number, each in enumerate(brokers, 1) if number in counted and each.is_running()}


def others_in_sync(cluster: Cluster, name: str) -> int:
    """How many other running brokers have everything."""
    return len(in_sync(cluster) - {cluster.address(cluster.nodes[name])})


def logs(cluster: Cluster) -> dict[str, dict[str, bytes]]:
    """Broker -> file -> bytes of its log; only while nothing is written."""
    found = {}
    for node in cluster.of("broker"):
        place = node.data / "log"
        found[node.name] = {each.name: each.read_bytes() for each in sorted(place.iterdir()) if is_segment(each)}
    return found


def is_segment(file: Path) -> bool:
    """Segments are named by their first position."""
    return file.name.isdigit()
