"""``lightmq topics``: every topic of every broker with its queues and message counts."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.link import ServerTarget, brokers
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command

HERE = ServerTarget()
HEADINGS = ("TOPIC", "BROKER", "QUEUES", "MESSAGES", "FIRST-LAST")


def topics(
    prefix: Annotated[str, Parameter(help="Only topics that begin with this.")] = "",
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per topic.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List topics with their queues and message counts."""
    rows: list[dict[str, Any]] = []
    with brokers(target) as found:
        for broker in found:
            listed = parse(broker.ask(Command(RequestCode.TOPIC_LIST)).body)
            rows += [{"broker": broker.name, **row} for row in listed if str(row.get("topic", "")).startswith(prefix)]
    rows.sort(key=lambda row: (row["topic"], row["broker"]))
    if json_output:
        sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sys.stdout.write(table(rows))


def parse(body: bytes) -> list[dict[str, Any]]:
    """The topics of a broker's answer. Raises CommandFailed when it is not one."""
    try:
        listed = json.loads(body)["topics"]
        return [row for row in listed if row["topic"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"the broker's answer to TOPIC_LIST cannot be read: {error!r}") from error


def table(rows: list[dict[str, Any]]) -> str:
    """The topics as aligned columns."""
    cells = [HEADINGS, *[_cells(row) for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(lines) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    queues = row.get("queues", [])
    counts = [queue["max"] - queue["min"] for queue in queues]
    spans = " ".join(f"{queue['min']}-{queue['max']}" for queue in queues)
    return (str(row["topic"]), str(row["broker"]), str(len(queues)), str(sum(counts)), spans)
