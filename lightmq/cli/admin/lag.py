"""``lightmq lag``: how far consumer groups are behind, by queue, in messages and seconds, as the brokers see it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.admin.sessions import columns, printable
from lightmq.cli.connections.link import Broker, ServerTarget, brokers
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

HERE = ServerTarget()
HEADINGS = ("GROUP", "TOPIC", "BROKER", "QUEUE", "OFFSET", "END", "MESSAGES", "SECONDS")
NUMBERS = ("brokerOffset", "consumerOffset", "minOffset", "waitingMs")


def lag(
    group: Annotated[str, Parameter(help="Only this group.")] = "",
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per queue.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show how far consumer groups are behind: RocketMQ consumers, and Spark queries with `consumerGroup`.

    SECONDS is the age of the oldest message a group has not committed. A Spark query commits a batch when the next one
    begins, so up to one batch of what is shown as waiting may be done.
    """
    with brokers(target) as found:
        rows = [row for broker in found for row in _rows(broker, group)]
    if group and not rows:
        raise CommandFailed(f"no broker has offsets of group {group!r}; it never committed, or its topics were deleted")
    rows.sort(key=lambda row: (row["group"], row["topic"], row["broker"], row["queue"]))
    if json_output:
        sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sys.stdout.write(columns(HEADINGS, [_cells(row) for row in rows]))


def _rows(broker: Broker, group: str) -> Iterator[dict[str, Any]]:
    """One row per queue that a group has an offset in."""
    if group:
        asked = Command(RequestCode.GET_CONSUME_STATS, fields={"consumerGroup": group})
        tables = [(group, broker.ask(asked).body)]
        yield from _described(broker.name, [(name, _parse(body)) for name, body in tables])
        return
    body = _parse(broker.ask(Command(RequestCode.GET_BROKER_CONSUME_STATS, fields={"isOrder": "false"})).body)
    if body.get("truncated"):
        sys.stderr.write(f"broker {broker.name} has more groups than it shows at once; name one: lightmq lag GROUP\n")
    try:
        stats = [(name, each) for one in body["consumeStatsList"] for name, found in one.items() for each in found]
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(error) from error
    yield from _described(broker.name, stats)


def _described(broker: str, stats: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    try:
        for group, each in stats:
            for key, value in each["offsetTable"].items():
                queue, numbers = json.loads(key), {name: int(value[name]) for name in NUMBERS}
                yield described(group, broker, queue["topic"], int(queue["queueId"]), numbers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(error) from error


def described(group: str, broker: str, topic: str, queue: int, numbers: dict[str, int]) -> dict[str, Any]:
    """One queue of one group as `--json` prints it; times in seconds, 0 with nothing waiting."""
    return {
        "group": group,
        "topic": topic,
        "broker": broker,
        "queue": queue,
        "offset": numbers["consumerOffset"],
        "end": numbers["brokerOffset"],
        "messages": max(0, numbers["brokerOffset"] - max(numbers["consumerOffset"], numbers["minOffset"])),
        "seconds": numbers["waitingMs"] / 1000,
    }


def _parse(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise _unreadable(error) from error
    if not isinstance(found, dict):
        raise _unreadable(TypeError(type(found).__name__))
    return found


def _unreadable(error: Exception) -> CommandFailed:
    return CommandFailed(f"the broker's answer about its groups cannot be read: {error!r}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (row["queue"], row["offset"], row["end"], row["messages"])
    texts = (printable(row["group"]), printable(row["topic"]), row["broker"])
    return (*texts, *map(str, numbers), f"{row['seconds']:.1f}")
