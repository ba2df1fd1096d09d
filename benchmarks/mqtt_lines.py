"""The lines of the MQTT benchmark: the arguments of the load generator, and the figures that are judged.

A line bounds the undelivered messages (`--e2e-window`), so that a server gains nothing by dropping or queueing messages
that it cannot deliver; only the 1,000 devices are bounded by their own acknowledgements, as real devices are.
Invariant: names are unique; the order is the order of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

PAIRS = ("-P", "100", "-S", "100", "-f", "dev/%d/state")
BOUNDED = ("--e2e-window", "2000")


@dataclass(frozen=True, slots=True)
class Line:
    """One row: arguments of the load generator, and the goal for ours divided by mosquitto's CPU per message."""

    name: str
    arguments: tuple[str, ...]
    goal: float | None = None
    flush: str = "async"
    p99_ms_max: float | None = None
    idle: bool = False
    """Connections instead of traffic: CPU per connect, bytes per connection."""
    goal_us: float | None = None
    """CPU per connection, absolute."""
    goal_bytes: float | None = None
    """Memory per connection, absolute."""


LINES = (
    Line("fan-in 100>1 QoS 0", ("-P", "100", "-S", "1", "-q", "0", *BOUNDED), 0.60),
    Line("fan-in 100>1 QoS 1", ("-P", "100", "-S", "1", "-q", "1", *BOUNDED), 0.50),
    Line("pairs 100>100 QoS 0", (*PAIRS, "-q", "0", *BOUNDED), 0.60),
    Line("pairs 100>100 QoS 1", (*PAIRS, "-q", "1", *BOUNDED), 0.50),
    Line("fan-out 1>100 QoS 0", ("-P", "1", "-S", "100", "-q", "0", "--e2e-window", "10000"), 0.06),
    Line("fan-out 1>100 QoS 1", ("-P", "1", "-S", "100", "-q", "1", "-w", "100", "--e2e-window", "10000"), 0.15),
    Line("fan-out one outstanding QoS 0", ("-P", "1", "-S", "100", "-q", "0", "--e2e-window", "100"), 0.90),
    Line("fan-out one outstanding QoS 1", ("-P", "1", "-S", "100", "-q", "1", "-w", "1", "--e2e-window", "100"), 0.90),
    Line("open loop 10 k/s pairs QoS 1", (*PAIRS, "-q", "1", "-r", "10000"), 1.1, p99_ms_max=5.0),
    Line("open loop 2 k/s pairs QoS 1", (*PAIRS, "-q", "1", "-r", "2000"), 1.2),
    Line("1,000 devices window 1 fan-in QoS 1", ("-P", "1000", "-S", "1", "-q", "1", "-w", "1"), 1.0),
    Line("pairs QoS 1, fdatasync before PUBACK", (*PAIRS, "-q", "1", *BOUNDED), 0.80, flush="sync"),
    Line("pairs 100>100 QoS 2", (*PAIRS, "-q", "2", *BOUNDED), 0.80),
    Line(
        "5,000 idle connections, one subscription", ("-i", "5000", "-f", "dev/%d/state", "--hold", "1"), idle=True,
        goal_us=80.0, goal_bytes=4096.0,
    ),
    Line("ingest 100 publishers QoS 1", ("-P", "100", "-S", "0", "-q", "1")),
    Line("ingest 100 publishers QoS 1, window 1", ("-P", "100", "-S", "0", "-q", "1", "-w", "1")),
    Line("open loop 2 k/s pairs QoS 1, fdatasync", (*PAIRS, "-q", "1", "-r", "2000"), flush="sync"),
)  # fmt: skip
