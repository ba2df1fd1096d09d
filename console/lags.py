"""The lag of consumer groups from the brokers' answers about them, in messages and seconds.

Invariant: what cannot be read is a RemoteViolation, not a lag of 0. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from console.cluster import Asked
from remoting.protocol.errors import RemoteViolation


@dataclass(slots=True)
class Lag:
    """How far consumer groups are behind."""

    groups: int = 0
    messages_max: int = 0
    seconds_max: float = 0.0
    worst: str = ""
    """The group with the largest lag in seconds."""


def rows(broker: str, stats: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one row per queue that a group has an offset in; `stats` are RocketMQ's ConsumeStats by group."""
    try:
        for group, each in stats:
            for key, value in each["offsetTable"].items():
                queue = json.loads(key)
                offset, end = int(value["consumerOffset"]), int(value["brokerOffset"])
                lag = max(0, end - max(offset, int(value.get("minOffset", 0))))
                yield {
                    "group": group, "broker": broker, "topic": queue["topic"], "queue": int(queue["queueId"]),
                    "offset": offset, "end": end, "lag": lag, "lag_s": int(value.get("waitingMs", 0)) / 1_000,
                    "committed_ms": int(value.get("lastTimestamp", 0)),
                }  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteViolation(f"an answer about groups cannot be read: {error}") from error


def all_rows(asked: Asked) -> Iterator[dict[str, Any]]:
    """Yield the rows of all groups from answers to GET_BROKER_CONSUME_STATS."""
    for broker, body in asked.objects():
        try:
            stats = [(name, each) for one in body["consumeStatsList"] for name, found in one.items() for each in found]
        except (KeyError, TypeError, AttributeError) as error:
            raise RemoteViolation(f"an answer about groups cannot be read: {error}") from error
        yield from rows(broker, stats)


def lag_of(asked: Asked) -> Lag:
    """Return the largest lag of any group: of all its queues together in messages, of its worst queue in seconds."""
    messages: dict[str, int] = {}
    lag = Lag()
    for row in all_rows(asked):
        messages[row["group"]] = messages.get(row["group"], 0) + row["lag"]
        if row["lag_s"] > lag.seconds_max:
            lag.seconds_max, lag.worst = row["lag_s"], row["group"]
    lag.groups, lag.messages_max = len(messages), max(messages.values(), default=0)
    return lag
