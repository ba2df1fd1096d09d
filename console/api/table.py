"""All operations of the HTTP API, in the order of the description.

Invariant: a name, and a method of a path, occur once.
"""

from __future__ import annotations

from console.api import brokers, clients, groups, overview, retained, security, streams, topics
from console.api.operations import Operation

OPERATIONS: tuple[Operation, ...] = (
    *overview.OPERATIONS, *clients.OPERATIONS, *topics.OPERATIONS, *retained.OPERATIONS, *groups.OPERATIONS,
    *brokers.OPERATIONS, *streams.OPERATIONS, *security.OPERATIONS,
)  # fmt: skip
