"""``lightmq groups``: consumer groups with their lag; ``groups reset`` and ``groups skip`` move one.

A group is moved by the broker, which tells its connected members. Every act is in the audit record.
"""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.admin.clients import COUNT_DEFAULT, pages
from lightmq.cli.admin.sessions import lag
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
    contains: Annotated[str, Parameter(help="Only groups with this text in their name.")] = "",
    furthest: Annotated[
        bool, Parameter(negative="", help="The groups that are furthest behind first, 200 at most.")
    ] = False,
    count: Annotated[int, Parameter(help="Maximum number of groups to list, by name.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per group.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List consumer groups, Spark queries with a group included, with the sum of their lag and its age.

    By queue: lightmq groups lag GROUP
    """
    asked = {"contains": contains} | ({"order": "lag"} if furthest else {})
    with brokers(target) as found:
        rows = [row for broker in found for row in pages(broker, RequestCode.GROUP_LIST, "groups", asked, count)]
    listed = summed(rows)
    if furthest:
        listed.sort(key=lambda row: -row["messages"])
    empty = "no group matches" if contains else "no group has committed an offset"
    print_rows(listed[:count], HEADINGS, _cells, json_output=json_output, empty=empty)


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


def summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per group of what the brokers list."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        one = found.setdefault(
            row["name"],
            {"group": row["name"], "topics": [], "topics_total": 0, "queues": 0, "messages": 0, "seconds": 0.0},
        )
        one["topics"] = sorted({*one["topics"], *row["topics"]})
        one["topics_total"] = max(len(one["topics"]), one["topics_total"], row["topics_total"])
        one["queues"] += row["queues"]
        one["messages"] += row["lag"]
        one["seconds"] = max(one["seconds"], row["lag_s"])
    return [found[name] for name in sorted(found)]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    more = row["topics_total"] - len(row["topics"])
    topics = ", ".join(map(printable, row["topics"])) + (f" and {more} more" if more > 0 else "")
    return printable(row["group"]), topics, str(row["queues"]), str(row["messages"]), f"{row['seconds']:.1f}"
