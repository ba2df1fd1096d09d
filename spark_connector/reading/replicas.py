"""Replicas that serve a query's tasks, for the option `readFrom`: which there are, and which one a task asks.

    replica   a replica of the queue's broker group; the tasks of a batch are spread over them
    nearest   the broker of the group, its master included, on the task's own machine, else the one that takes a
              connection fastest, as measured once per process and minute

What is read is decided at the master (`bounds`), so a replica is only a short cut: where it is gone, or does not have
in time what was planned, the task asks the next one, at last the master. Invariant: the order in which a task asks
depends on nothing but its partition and, for `nearest`, its machine. Thread rule: `ReplicaWatch` belongs to the
driver-side process of the query, the rest to one task.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from remoting import clock
from remoting.protocol.addresses import split_address
from remoting.protocol.bodies.controller_body import MASTER_ID
from spark_connector.brokers import Address, broker_groups, quick
from spark_connector.errors import BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions

FRESH_S = 10.0
"""How long a list of replicas is used before the name servers are asked for another one."""
MEASURED_S = 60.0
"""How long a measurement of distance is used."""
MEASURE_TIMEOUT_S = 0.5
"""Longest wait for a connection while distances are measured; who takes longer is the farthest."""

Replicas = Mapping[str, Sequence[Address]]
"""Broker group → addresses of its replicas."""


@dataclass(frozen=True, slots=True)
class ShortCuts:
    """Where ranges are served besides at the masters, by broker group."""

    readers: Mapping[str, Address] = field(default_factory=dict)
    """Address of the reader processes beside a master."""
    replicas: Replicas = field(default_factory=dict)

    def among(self, brokers: Collection[str]) -> ShortCuts:
        """Those of some groups."""
        return ShortCuts(
            {broker: address for broker, address in self.readers.items() if broker in brokers},
            {broker: found for broker, found in self.replicas.items() if broker in brokers},
        )


class ReplicaWatch:
    """The replicas that the name servers know."""

    def __init__(self, options: ReadOptions) -> None:
        self._wanted = options.read_from != "master"
        self._options = quick(options)
        self._known: dict[str, tuple[Address, ...]] = {}
        self._asked_s: float | None = None

    def known(self) -> Replicas:
        """By the groups' names at the name servers, those known last; empty where tasks read from masters.

        Never raises: without an answer the list stays.
        """
        now_s = clock.monotonic_s()
        if self._wanted and (self._asked_s is None or now_s - self._asked_s >= FRESH_S):
            self._asked_s = now_s
            with contextlib.suppress(BrokerUnreachable, BrokerRefused):
                self._known = {
                    name: tuple(_addresses(data.broker_addrs))
                    for name, data in broker_groups(self._options, replicas=True).broker_addr_table.items()
                }
        return self._known


def _addresses(by_id: Mapping[int, str]) -> list[Address]:
    found = []
    for broker_id in sorted(by_id):
        if broker_id != MASTER_ID:
            with contextlib.suppress(ValueError):
                found.append(split_address(by_id[broker_id]))
    return found


class Distances:
    """How long brokers took to take a connection from this process."""

    def __init__(self) -> None:
        self._measured: dict[Address, tuple[float, float]] = {}

    def of(self, address: Address) -> float:
        """Seconds; 0 for this machine, infinite for who could not be reached."""
        now_s = clock.monotonic_s()
        at_s, distance = self._measured.get(address, (now_s - MEASURED_S, 0.0))
        if now_s - at_s >= MEASURED_S:
            distance = _measure(address)
            self._measured[address] = (now_s, distance)
        return distance


def _measure(address: Address) -> float:
    began_s = clock.monotonic_s()
    try:
        with socket.create_connection(address, MEASURE_TIMEOUT_S) as connection:
            mine, theirs = connection.getsockname()[0], connection.getpeername()[0]
    except OSError:
        return float("inf")
    return 0.0 if mine == theirs else clock.monotonic_s() - began_s


DISTANCES = Distances()


def order(read_from: str, replicas: Sequence[Address], master: Address, turn: int) -> list[Address]:
    """The replicas to ask before the master, the first one first; `turn` differs between the tasks of a batch.

    With `nearest` only those that are nearer than the master: behind it nothing is to be had that it does not have.
    """
    found = list(replicas)
    if found:
        first = turn % len(found)
        found = found[first:] + found[:first]
    if read_from == "nearest":
        limit = DISTANCES.of(master)
        found = sorted((one for one in found if DISTANCES.of(one) < limit), key=DISTANCES.of)
    return found
