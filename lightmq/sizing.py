"""What an installation needs, from what is to be done and what each part of it was measured to cost. Pure.

    Load     devices, messages, days
    size()   Load -> Needs: cores, memory, disk, and sentences about what is near a limit
    table()  the costs as rows of Markdown
    COSTS    the measured costs, each with the benchmark that measures it; docs/sizing.md shows the same table

Invariant: every number that is not the user's is in `COSTS` or `PUBLISH_US`; nothing is guessed. What was not measured
is said in a sentence instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DAY_S = 86_400
ALIGNMENT = 8
"""Records begin at multiples of so many bytes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One measured cost: an amount of a unit, for each of something."""

    amount: float
    unit: str
    each: str
    benchmark: str


COSTS = {
    "record": Cost(172, "bytes", "message in the log, beside its payload", "disk"),
    "entry": Cost(16, "bytes", "queue that a message is in: its parent topic, its MQTT topic, each filter", "disk"),
    "deliver": Cost(7.0, "µs", "further delivery of a message, one message at a time", "mqtt"),
    "row": Cost(0.4, "µs", "row read by a Spark query, at the broker", "spark"),
    "replicate": Cost(3.6, "µs", "message at the master, two replicas, one message at a time", "replication"),
    "follow": Cost(2.9, "µs", "message at a replica", "replication"),
    "process": Cost(70e6, "bytes", "process of `lightmq up`", "mqtt"),
    "connection": Cost(4_700, "bytes", "open connection", "connections"),
    "tls": Cost(29_000, "bytes", "open connection by TLS", "connections"),
    "session": Cost(2_300, "bytes", "session that stays", "sessions"),
    "queue": Cost(140, "bytes", "light queue: an MQTT topic or a filter", "queues"),
    "behind": Cost(300_000, "bytes", "subscriber that reads too slowly", "sessions"),
}
PUBLISH_US = ((2_000, 120.0), (10_000, 55.5), (129_000, 8.0))
"""Messages a second, and µs of CPU for each at broker and proxy, with one delivery: few messages share no system calls
(benchmark `mqtt`; the first and the last with `fdatasync`)."""
SPARE = 2.0
"""So many times the mean load are provided for: devices do not send evenly, and a core that is full makes all wait."""
SEGMENTS_BYTES, FREE_BYTES = 2 * 256 * 2**20, 256 * 2**20
"""The newest log file and the one that retention has not taken yet, and `free_space_bytes_min`."""
SOCKETS_MAX = 20_000
"""`proxy.connections_max`."""
PASSWORDS_PER_S = 5.5
"""Checks of new passwords a second and core."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What is to be done. `subscribers` receive each message over MQTT, `queries` of Spark read it."""

    devices: int
    rate_per_s: float
    """Messages a second of all devices."""
    payload_bytes: int = 100
    days: float = 7.0
    subscribers: int = 1
    queries: int = 1
    replicas: int = 0
    tls: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What that takes, of each broker's machine where it says so."""

    messages_per_s: float
    cores_busy: float
    """At the master and its proxies, in the mean."""
    cores: int
    replica_cores_busy: float
    memory_bytes: int
    message_bytes: int
    """Of one message on one disk, with its queue entries."""
    disk_bytes: int
    """Of each broker."""
    disk_bytes_per_s: float
    notes: tuple[str, ...]


def publish_us(rate_per_s: float) -> float:
    """CPU of one message at this rate, between the measured ones on a logarithmic scale."""
    if rate_per_s <= PUBLISH_US[0][0]:
        return PUBLISH_US[0][1]
    for (low, first), (high, second) in pairwise(PUBLISH_US):
        if rate_per_s <= high:
            share = math.log(rate_per_s / low) / math.log(high / low)
            return first * math.exp(share * math.log(second / first))
    return PUBLISH_US[-1][1]


def table() -> str:
    """The measured costs as the page shows them."""
    rows = []
    for cost in COSTS.values():
        figure = f"{cost.amount:,.0f}" if cost.amount >= 10 else f"{cost.amount:g}"
        rows.append(f"| {cost.each} | {figure} {cost.unit} | `{cost.benchmark}` |")
    rows += [f"| message published at {rate:,} a second | {us:g} µs | `mqtt` |" for rate, us in PUBLISH_US]
    return "\n".join(["| each … | costs | benchmark |", "|---|---|---|", *rows])


def size(load: Load) -> Needs:
    """Return what the load needs."""
    amount = {name: cost.amount for name, cost in COSTS.items()}
    queues = 2 + load.subscribers
    record = math.ceil((amount["record"] + load.payload_bytes) / ALIGNMENT) * ALIGNMENT
    message_bytes = record + round(amount["entry"] * queues)
    message_us = publish_us(load.rate_per_s)
    message_us += amount["deliver"] * max(load.subscribers - 1, 0) + amount["row"] * load.queries
    message_us += amount["replicate"] if load.replicas else 0.0
    busy = load.rate_per_s * message_us / 1e6
    each = amount["tls" if load.tls else "connection"] + amount["session"] + amount["queue"]
    listeners = load.subscribers * (amount["behind"] + amount["queue"])
    return Needs(
        messages_per_s=load.rate_per_s,
        cores_busy=busy,
        cores=max(2, math.ceil(busy * SPARE)),
        replica_cores_busy=load.rate_per_s * amount["follow"] / 1e6 if load.replicas else 0.0,
        memory_bytes=round(amount["process"] + load.devices * each + listeners),
        message_bytes=message_bytes,
        disk_bytes=round(message_bytes * load.rate_per_s * load.days * DAY_S) + SEGMENTS_BYTES + FREE_BYTES,
        disk_bytes_per_s=message_bytes * load.rate_per_s,
        notes=tuple(_notes(load, busy)),
    )


def _notes(load: Load, busy: float) -> Sequence[str]:
    found = []
    if load.devices > SOCKETS_MAX:
        proxies = math.ceil(load.devices / SOCKETS_MAX)
        found.append(f"{load.devices:,} connections take {proxies} proxies, or a higher proxy.connections_max")
    if load.rate_per_s > PUBLISH_US[-1][0]:
        found.append(f"more than {PUBLISH_US[-1][0]:,} messages/s through one broker were not measured")
    if busy > 1.0:
        found.append("broker and proxies need processes of their own: the loop of one process has one core")
    if load.tls:
        found.append("TLS: memory of the connections is counted, CPU of encrypted messages was not measured")
    if load.devices / PASSWORDS_PER_S > 60:
        minutes = load.devices / PASSWORDS_PER_S / 60
        found.append(f"a user each: a proxy's first start checks passwords for {minutes:.0f} min of a core")
    return found
