"""``lightmq sessions``: the MQTT sessions of brokers with their backlogs; ``lightmq lag``: the lag of consumer groups.

Lag is shown by queue, in messages and seconds, as the brokers report it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from lightmq.cli.completing import GROUPS, SESSIONS
from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import CommandFailed, columns, json_object, print_done, print_rows, printable, unreadable
from lightmq.cli.times import age, moment, span
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime.reasons import in_words

HERE = ServerTarget()
PAGE = 1_000
COUNT_DEFAULT = 100
NEVER_S = 0xFFFF_FFFF
"""Expiry of a session that is kept until its client ends it."""
HEADINGS = ("CLIENT", "USER", "STATE", "EXPIRY", "FILTERS", "BACKLOG", "REMOVED")
FILTER_HEADINGS = ("FILTER", "QOS", "OPTIONS", "ID", "BACKLOG", "REMOVED")


sessions = App(
    name="sessions",
    help="List MQTT sessions with their backlog, show or end one.",
    help_format="plaintext",
    help_epilogue=epilogue("sessions"),
)


@sessions.default
def listing(
    client: Annotated[str, SESSIONS, Parameter(help="Client id of one session, shown with its subscriptions.")] = "",
    *,
    contains: Annotated[str, Parameter(help="Only client ids with this text.")] = "",
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Only sessions of this user.")] = "",
    state: Annotated[Literal["", "connected", "away"], Parameter(help="Only those whose client is so.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of sessions to list, by client id.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per session.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List MQTT sessions, or show one: user, connected, expiry, subscriptions, backlog, what was removed."""
    if client:
        show(client, json_output=json_output, target=target)
        return
    asked = {name: text for name, text in (("contains", contains), ("user", user), ("state", state)) if text}
    with brokers(target) as found:
        rows = [row for broker in found for row in _page(broker, asked, count)]
    rows.sort(key=lambda row: str(row["client"]))
    empty = "no session is selected" if asked else "there are no sessions"
    print_rows(rows[:count], HEADINGS, summary, json_output=json_output, empty=empty)


@sessions.command
def show(
    client: Annotated[str, SESSIONS, Parameter(help="Client id.")],
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show one session: user, connected, expiry, subscriptions, backlog, what was removed."""
    with brokers(target) as found:
        shown = _one(found, client)
    sys.stdout.write(json.dumps(shown) + "\n" if json_output else detail(shown))


@sessions.command
def end(
    client: Annotated[str, SESSIONS, Parameter(help="Client id.")],
    *,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """End a session: its subscriptions, offsets and backlog are removed; a connected client is disconnected.

    Wills that wait are published.
    """
    with brokers(target) as found:
        for broker in found:
            try:
                broker.ask(Command(RequestCode.SESSION_END, fields={"client": client}))
            except Refused as refused:
                if refused.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            else:
                print_done(f"ended the session of {client}", json_output, client=client, broker=broker.name)
                return
    raise CommandFailed(f"no broker has a session of client id {client!r}")


def _one(found: list[Broker], client: str) -> dict[str, Any]:
    for broker in found:
        try:
            answer = broker.ask(Command(RequestCode.SESSION_LIST, fields={"client": client}))
        except Refused as refused:
            if refused.code != ResponseCode.QUERY_NOT_FOUND:
                raise
        else:
            return {"broker": broker.name, **_parse(answer.body, "session", dict)}
    raise CommandFailed(f"no broker has a session of client id {client!r}")


def _page(broker: Broker, asked: dict[str, str], count: int) -> Iterator[dict[str, Any]]:
    """The first sessions of a broker that are asked for, by client id."""
    after, left = "", count
    while left > 0:
        fields = asked | {"after": after, "limit": str(min(left, PAGE))}
        body = broker.ask(Command(RequestCode.SESSION_LIST, fields=fields)).body
        rows = _parse(body, "sessions", list)
        for row in rows:
            yield {"broker": broker.name, **row}
        left -= len(rows)
        if not rows or not _parse(body, "more", bool):
            return
        after = rows[-1]["client"]


def _parse(body: bytes, member: str, kind: type) -> Any:
    found = json_object(body, "to SESSION_LIST").get(member)
    if not isinstance(found, kind):
        raise unreadable("to SESSION_LIST", f"{member} is no {kind.__name__}")
    return found


def summary(row: dict[str, Any]) -> tuple[str, ...]:
    """One session as a line of the list."""
    return (
        printable(row["client"]),
        printable(row["user"] or "-"),
        "connected" if row["connected"] else "away, " + _kept(row),
        _expiry(row),
        str(row["subscriptions"]),
        backlog(row),
        removed(row["removed"]),
    )


def detail(row: dict[str, Any]) -> str:
    """One session with its subscriptions."""
    lines = [
        f"client        {printable(row['client'])}",
        f"user          {printable(row['user'] or '-')}",
        f"state         {'connected' if row['connected'] else 'away, ' + _kept(row) + _end(row)}",
        f"expiry        {_expiry(row)}" + (" after its connection" if row["expiry_s"] != NEVER_S else ""),
        f"backlog       {row['backlog']} messages" + _of_groups(row),
        f"in flight     {row['in_flight']} noted, {row['received']} QoS 2 publishes not released",
        f"wills         {row['wills']}",
        f"removed       {removed(row['removed'])}",
    ]
    filters = [
        (
            printable(one["filter"]),
            str(one["qos"]),
            ",".join(name for name in ("no_local", "retain_as_published") if one[name]) or "-",
            str(one["subscription_id"] or "-"),
            backlog(one),
            str(one["removed"]),
        )
        for one in row["filters"]
    ]
    return "\n".join(lines) + "\n" + (columns(FILTER_HEADINGS, filters) if filters else "")


def backlog(row: dict[str, Any]) -> str:
    """What waits for a session or filter alone, and behind it what waits for all members of its shared ones."""
    shared = row.get("shared_backlog", 0)
    return f"{row['backlog']} + {shared} shared" if shared else str(row["backlog"])


def _of_groups(row: dict[str, Any]) -> str:
    shared = row.get("shared_backlog", 0)
    return f", {shared} more for the members of its shared subscriptions" if shared else ""


def _kept(row: dict[str, Any]) -> str:
    """Until when a session without its client is kept; the broker names no end of one that has none."""
    return "kept until it is ended" if row["ends_ms"] is None else f"ends {age(row['ends_ms'])}"


def _end(row: dict[str, Any]) -> str:
    return "" if row["ends_ms"] is None else f" ({moment(row['ends_ms'])})"


def _expiry(row: dict[str, Any]) -> str:
    return "never" if row["expiry_s"] == NEVER_S else span(row["expiry_s"])


def removed(counts: dict[str, int]) -> str:
    """What a session did not get, by reason."""
    return ", ".join(f"{count} {in_words(reason)}" for reason, count in sorted(counts.items())) or "0"


LAG_HEADINGS = ("GROUP", "TOPIC", "BROKER", "QUEUE", "OFFSET", "END", "MESSAGES", "SECONDS")
ABOUT_GROUPS = "about its groups"
NUMBERS = ("brokerOffset", "consumerOffset", "minOffset", "waitingMs")


def lag(
    group: Annotated[str, GROUPS, Parameter(help="Only this group.")] = "",
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per queue.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show how far groups are behind: RocketMQ consumers, Spark queries with `consumerGroup`, shared subscriptions.

    A shared subscription of MQTT has its whole filter as its group, as `$share/workers/plant/#`.

    SECONDS is the age of the oldest message a group has not committed. A Spark query commits a batch when the next one
    begins, so up to one batch of what is shown as waiting may be done.
    """
    with brokers(target) as found:
        rows = [row for broker in found for row in lag_rows(broker, group)]
    if group and not rows:
        raise CommandFailed(f"no broker has offsets of group {group!r}; it never committed, or its topics were deleted")
    rows.sort(key=lambda row: (row["group"], row["topic"], row["broker"], row["queue"]))
    print_rows(rows, LAG_HEADINGS, _cells, json_output=json_output, empty="no group has committed an offset")


def lag_rows(broker: Broker, group: str) -> Iterator[dict[str, Any]]:
    """One row per queue that a group has an offset in."""
    if group:
        asked = Command(RequestCode.GET_CONSUME_STATS, fields={"consumerGroup": group})
        yield from _described(broker.name, [(group, json_object(broker.ask(asked).body, ABOUT_GROUPS))])
        return
    asked = Command(RequestCode.GET_BROKER_CONSUME_STATS, fields={"isOrder": "false"})
    body = json_object(broker.ask(asked).body, ABOUT_GROUPS)
    if body.get("truncated"):
        sys.stderr.write(f"broker {broker.name} has more groups than it shows at once; name one: lightmq lag GROUP\n")
    try:
        stats = [(name, each) for one in body["consumeStatsList"] for name, found in one.items() for each in found]
    except (KeyError, TypeError, AttributeError) as error:
        raise unreadable(ABOUT_GROUPS, error) from error
    yield from _described(broker.name, stats)


def _described(broker: str, stats: list[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    try:
        for group, each in stats:
            for key, value in each["offsetTable"].items():
                queue, numbers = json.loads(key), {name: int(value[name]) for name in NUMBERS}
                yield described(group, broker, queue["topic"], int(queue["queueId"]), numbers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(ABOUT_GROUPS, error) from error


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


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (row["queue"], row["offset"], row["end"], row["messages"])
    texts = (printable(row["group"]), printable(row["topic"]), row["broker"])
    return (*texts, *map(str, numbers), f"{row['seconds']:.1f}")
