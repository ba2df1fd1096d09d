"""How far a query is behind its queues, in messages and in seconds: what a source reports to Spark, for listeners.

Spark shows two things of a Python source in each progress report: `endOffset`, how far the batch went, and
`latestOffset`, which is whatever `reportLatestOffset` answered. The latter carries, beside the ends of the queues, for
queues that a batch did not read to their end how long the first message left over has been stored ("waitMs"), and how
many messages had expired before they could be read ("lost", where `failOnDataLoss` is false).

Invariant: only a report; a broker that does not answer costs the times and nothing else. Pure but for `waiting_ms`,
which asks brokers from the driver-side process of the query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from spark_connector.brokers import GroupMaster
from spark_connector.errors import OptionError
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import Positions, from_json
from spark_connector.reading.selection import Bounds

QUEUES_ASKED_MAX = 16
"""Queues whose waiting time is asked for per batch, those with the most messages waiting; each is one short request."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One queue behind a batch: messages not read by it, and for how long the oldest of them has been stored."""

    key: QueueKey
    messages: int
    seconds: float | None
    """None where the source did not ask (QUEUES_ASKED_MAX) or got no answer."""


def waiting_ms(
    ends: Positions,
    bounds: Mapping[QueueKey, Bounds],
    masters: Mapping[str, GroupMaster],
    now_ms: int,
) -> dict[QueueKey, int]:
    """Return how long the first message at or behind `ends` has been stored, for the queues furthest behind."""
    behind = {
        key: queue.max - max(ends[key], queue.min)
        for key, queue in bounds.items()
        if key in ends and queue.max > ends[key]
    }
    furthest = sorted((key for key in behind if behind[key] > 0), key=lambda key: (-behind[key], key))
    found = {}
    for key in furthest[:QUEUES_ASKED_MAX]:
        queue, at = bounds[key], max(ends[key], bounds[key].min)
        body = encode_range_pull(queue.id, at, at + 1, 1)
        with suppress(LightMQError, KeyError, IndexError):
            reply = masters[key.broker].ask(Command(RequestCode.RANGE_PULL, body=body))
            pulled = decode_range_pull_reply(reply.body)
            if pulled.count:
                stored_ms = RecordView(pulled.blob, int.from_bytes(pulled.starts[:4], "little")).store_ms
                found[key] = max(0, now_ms - stored_ms)
    return found


def queue_lags(end: str | None, latest: str | None) -> list[QueueLag]:
    """Return the lag of every queue of one source of a progress report, from its `endOffset` and `latestOffset`.

    Empty for sources that are not ours and for reports without offsets.
    """
    try:
        reached = from_json(json.loads(end or "null") or {})
        seen = from_json(json.loads(latest or "null") or {})
    except (ValueError, OptionError, AttributeError):
        return []
    waits = seen.waiting_ms or {}
    found = []
    for key, last in sorted(seen.positions.items()):
        messages = max(0, last - reached.positions.get(key, 0))
        seconds = waits[key] / 1000 if key in waits else None if messages else 0.0
        found.append(QueueLag(key, messages, seconds))
    return found


def lost_messages(latest: str | None) -> int:
    """Return how many messages had expired before one source could read them, from the `latestOffset` of a report."""
    try:
        return from_json(json.loads(latest or "null") or {}).lost
    except (ValueError, OptionError, AttributeError):
        return 0


def behind_latest(lags: Iterable[QueueLag]) -> dict[str, float]:
    """Return Kafka's three figures over the queues of a source: avg, max and min messages behind the latest."""
    messages = [lag.messages for lag in lags]
    if not messages:
        return {"avg": 0.0, "max": 0.0, "min": 0.0}
    return {"avg": sum(messages) / len(messages), "max": float(max(messages)), "min": float(min(messages))}
