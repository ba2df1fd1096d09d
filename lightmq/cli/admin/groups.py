"""``lightmq groups``: consumer groups with their lag; ``groups reset`` and ``groups skip`` move one.

A group is moved by the broker, which tells its connected members. Every act is in the audit record.
"""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.admin.sessions import lag, lag_rows
from lightmq.cli.completing import GROUPS, TOPICS
from lightmq.cli.connections import ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import CommandFailed, json_object, print_done, print_rows, printable
from lightmq.cli.times import time_ms
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

groups = App(
    name="groups",
    help="List consumer groups with their lag, move one.",
    help_format="plaintext",
    help_epilogue=epilogue("groups"),
)
HERE = ServerTarget()
HEADINGS = ("GROUP", "TOPICS", "QUEUES", "MESSAGES", "SECONDS")
EARLIEST, LATEST = "earliest", "latest"
AT_THE_END = -1
"""RocketMQ's time for the end of each queue."""

groups.command(lag)


@groups.default
def listing(
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per group.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List consumer groups, Spark queries with a group included, with the sum of their lag and its age.

    By queue: lightmq groups lag GROUP
    """
    with brokers(target) as found:
        queues = [row for broker in found for row in lag_rows(broker, "")]
    print_rows(summed(queues), HEADINGS, _cells, json_output=json_output, empty="no group has committed an offset")


@groups.command
def reset(
    group: Annotated[str, GROUPS, Parameter(help="Consumer group.")],
    topic: Annotated[str, TOPICS, Parameter(help="Topic.")],
    *,
    to: Annotated[
        str, Parameter(help="Where to go on: earliest, latest, a time (2026-11-22T10:15) or a span before now (10m).")
    ],
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Move a group in a topic, backwards or forwards; messages in between are read again, or never."""
    at = {EARLIEST: 0, LATEST: AT_THE_END}.get(to)
    moved = _move(target, group, topic, time_ms(to) if at is None else at)
    done = f"moved {group} in {moved} queues of {topic}"
    print_done(done, json_output, group=group, topic=topic, queues=moved)


@groups.command
def skip(
    group: Annotated[str, GROUPS, Parameter(help="Consumer group.")],
    topic: Annotated[str, TOPICS, Parameter(help="Topic.")],
    *,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Skip everything that waits: the group goes on with what comes from now on."""
    moved = _move(target, group, topic, AT_THE_END)
    done = f"skipped the backlog of {group} in {moved} queues of {topic}"
    print_done(done, json_output, group=group, topic=topic, queues=moved)


def _move(target: ServerTarget, group: str, topic: str, at_ms: int) -> int:
    """Move a group on every broker that has the topic; the number of queues moved. Raises CommandFailed."""
    fields = {"group": group, "topic": topic, "timestamp": str(at_ms), "isForce": "true"}
    moved, known = 0, False
    with brokers(target) as found:
        for broker in found:
            try:
                answer = broker.ask(Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=dict(fields)))
            except Refused as refused:
                if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                continue
            known = True
            table = json_object(answer.body, "to the reset").get("offsetTable") or {}
            moved += len(table)
    if not known:
        raise CommandFailed(f"no broker has a topic {topic!r}")
    return moved


def summed(queues: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per group of the rows of its queues."""
    found: dict[str, dict[str, Any]] = {}
    for row in queues:
        one = found.setdefault(row["group"], {"group": row["group"], "topics": [], "queues": 0, "messages": 0})
        if row["topic"] not in one["topics"]:
            one["topics"].append(row["topic"])
        one["queues"] += 1
        one["messages"] += row["messages"]
        one["seconds"] = max(one.get("seconds", 0.0), row["seconds"])
    return [found[name] for name in sorted(found)]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    topics = ", ".join(map(printable, sorted(row["topics"])))
    return printable(row["group"]), topics, str(row["queues"]), str(row["messages"]), f"{row['seconds']:.1f}"
