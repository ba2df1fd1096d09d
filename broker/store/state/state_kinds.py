"""The kinds of durable state, as numbers in control records.

Invariant: a number never changes its meaning and is never reused. Thread rule: constants.
"""

from __future__ import annotations

QUEUE = 1
"""Queue name -> id and the next offset it had when the record was written; the empty name holds the next free id."""
TOPIC = 2
GROUP_OFFSET = 3
SESSION = 4
SESSION_OFFSET = 5
RETAINED = 6
"""MQTT topic -> empty value; the position is that of the message record itself."""
FILTER = 7
LEDGER = 8
GROUP = 9
WILL = 10
RETENTION = 11
"""Group of queues with a retention of its own -> log position (i64) below which its queues show nothing."""
SESSION_INFLIGHT = 12
"""Client id and block of packet ids -> QoS 2 deliveries whose handshake is not over."""
SESSION_RECEIVED = 13
"""Client id and block of packet ids -> QoS 2 publishes taken and not released."""
LOG_BEGIN = 14
"""Empty key -> log position (i64): a group's master lets the log below go, what still holds of it was said again."""
SHARED = 20
"""Shared subscription (whole filter) -> its queue and how far its group has come."""
DELAYED = 21
"""Start (ms) of a span of time -> which of the messages that waited in it were delivered, and where the rest begin."""
TRANSACTION = 22
"""Offset of a half message -> how its transaction ended; `floor` -> the offset below which all have."""

NAMES = {
    QUEUE: "queue",
    TOPIC: "topic",
    GROUP_OFFSET: "group_offset",
    SESSION: "session",
    SESSION_OFFSET: "session_offset",
    RETAINED: "retained",
    FILTER: "filter",
    LEDGER: "ledger",
    GROUP: "group",
    WILL: "will",
    RETENTION: "retention",
    SESSION_INFLIGHT: "session_inflight",
    SESSION_RECEIVED: "session_received",
    LOG_BEGIN: "log_begin",
    SHARED: "shared",
    DELAYED: "delayed",
    TRANSACTION: "transaction",
}
