"""The group's state according to the controllers: which brokers are in sync, and their logs when all have ended.

Thread rule: any thread; every request has a connection of its own.
"""

from __future__ import annotations

from pathlib import Path

from lightmq.cli.admin.cluster import replicas
from lightmq.cli.connections import ServerTarget, leading_controller
from remoting.protocol.errors import LightMQError
from tests.chaos.cluster import GROUP, Cluster

QUESTION_S = 2.0


def in_sync(cluster: Cluster) -> set[str]:
    """Addresses of running brokers that have everything; empty when no controller answers."""
    target = ServerTarget(server=",".join(cluster.controllers), timeout=QUESTION_S)
    try:
        with leading_controller(target) as found:
            state = found.groups(GROUP)[GROUP]
    except (LightMQError, OSError):
        return set()
    return {
        replica.broker_address for replica in replicas(state) if replica.alive and replica in state.in_sync_replicas
    }


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
