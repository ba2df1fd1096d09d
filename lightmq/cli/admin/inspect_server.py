"""``lightmq trace``, ``audit``, ``spark`` and ``health``: one message's way, who did what, queries, what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.admin.clients import first_that_has
from lightmq.cli.connections import Broker, ServerTarget, brokers, controllers, dial
from lightmq.cli.outcome import CommandFailed, columns, json_object, print_rows, printable, unreadable
from lightmq.cli.times import age, moment, time_ms
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

HERE = ServerTarget()
STEP_HEADINGS = ("TIME", "WHERE", "WHAT", "DETAIL")
AUDIT_HEADINGS = ("TIME", "WHO", "ROLE", "ADDRESS", "ACT", "TARGET", "OUTCOME", "BY")
SPARK_HEADINGS = ("QUERY", "STATUS", "BATCH", "ROWS/S", "BATCH MS", "LAG", "LAG S", "STATE ROWS", "REPORTED")
HEALTH_HEADINGS = ("BROKER", "STATE", "PROBLEM")
PAGE = 200


def trace(
    message: Annotated[str, Parameter(help="MQTT topic, or the id of a message.")],
    offset: Annotated[int, Parameter(help="Number of the message in its topic, from 0; -1: MESSAGE is an id.")] = -1,
    *,
    queue: Annotated[int, Parameter(help="Queue of a RocketMQ topic; default: MESSAGE is an MQTT topic.")] = -1,
    topic: Annotated[str, Parameter(help="Topic of an id that is a producer's unique key.")] = "",
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Follow one message: sender, log, queues, sessions and groups that have it or wait for it, Spark queries, what it
    caused.
    """
    if offset >= 0:
        fields = {"topic": message, "offset": str(offset)} | ({"queue": str(queue)} if queue >= 0 else {})
    else:
        fields = {"id": message} | ({"topic": topic} if topic else {})
    found = first_that_has(target, Command(RequestCode.TRACE_MESSAGE, fields=fields), "no broker has such a message")
    if json_output:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    try:
        shown = found["message"]
        head = f"{printable(shown['topic'])} at {shown['offset']}, id {shown['id']}, {shown['bytes']} bytes\n"
        lines = [
            (moment(step["time_ms"]), step["where"], step["what"], printable(step["detail"]) + _until(step))
            for step in found["steps"]
        ]
        tail = "" if found["complete"] else f"searched up to position {found['searched_until']}; there may be more\n"
    except (KeyError, TypeError) as error:
        raise unreadable("to TRACE_MESSAGE", error) from error
    sys.stdout.write(head + columns(STEP_HEADINGS, lines) + tail)


def _until(step: dict[str, Any]) -> str:
    """Of a message that a group has: when the group gets it again, unless it is acknowledged."""
    return f", invisible until {moment(step['until_ms'])}" if step.get("until_ms") else ""


def audit(
    *,
    since: Annotated[
        str, Parameter(help="From this time (2026-11-22T10:15, yesterday) or this long ago (10m, 7d).")
    ] = "",
    until: Annotated[str, Parameter(help="Up to this time, or this long ago.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of acts, the newest first.")] = 50,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per act.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show who did what at brokers and controllers: every administrative act, by whatever tool, with its outcome."""
    fields = {"from_ms": str(time_ms(since))} if since else {}
    fields |= {"until_ms": str(time_ms(until))} if until else {}
    with brokers(target) as found:
        servers = dict(_acts(broker.ask, fields, count) for broker in found)
    servers |= _controller_acts(target, fields, count)  # in one process both are the same server
    rows = [{"server": name, **row} for name, acts in servers.items() for row in acts]
    rows.sort(key=lambda row: -int(row["time_ms"]))
    print_rows(rows[:count], AUDIT_HEADINGS, _act, json_output=json_output, empty="no act is recorded in that time")


Acts = list[dict[str, Any]]


def _controller_acts(target: ServerTarget, fields: dict[str, str], count: int) -> dict[str, Acts]:
    """The acts of each controller; one that does not answer is named on standard error."""
    signer, tls, timeout_ms = target.security.signer, target.security.client_tls, int(target.timeout * 1000)
    found: dict[str, Acts] = {}
    try:
        addresses = controllers(target)
    except CommandFailed as error:
        sys.stderr.write(f"the acts of controllers are missing: {error}\n")
        return found
    for name, address in addresses.items():
        try:
            with dial(address, timeout_ms, signer, tls) as connection:
                server, acts = _acts(partial(_asked, connection), fields, count)
                found[server] = acts
        except LightMQError as error:
            sys.stderr.write(f"the acts of controller {name} are missing: {error}\n")
    return found


def _asked(connection: BlockingConnection, command: Command) -> Command:
    return checked(connection.request(command))


def _acts(ask: Callable[[Command], Command], fields: dict[str, str], count: int) -> tuple[str, Acts]:
    """The name of a server, and its newest acts."""
    rows: Acts = []
    before: dict[str, str] = {}
    while True:
        asked = fields | before | {"limit": str(min(PAGE, max(1, count - len(rows))))}
        answer = json_object(ask(Command(RequestCode.AUDIT_LIST, fields=asked)).body, "to AUDIT_LIST")
        try:
            rows += answer["records"]
            server, before = answer["server"], {"before": answer["next"]}
        except KeyError as error:
            raise unreadable("to AUDIT_LIST", error) from error
        if not answer["next"] or len(rows) >= count:
            return server, rows


def _act(row: dict[str, Any]) -> tuple[str, ...]:
    texts = [printable(row[name]) or "-" for name in ("who", "role", "address", "act", "target", "outcome", "road")]
    return (moment(row["time_ms"]), *texts)


def spark(
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per query.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show the Spark queries that report to brokers: pace, duration of batches, lag, state, the last error.

    A session reports its queries with lightmq.spark.report_queries(spark, "host:port").
    """
    with brokers(target) as found:
        rows = [
            {"broker": broker.name, **row}
            for broker in found
            for row in json_object(broker.ask(Command(RequestCode.SPARK_QUERIES)).body, "about queries")["queries"]
        ]
    print_rows(rows, SPARK_HEADINGS, _query, json_output=json_output, empty="no Spark query reports here")
    if not json_output:
        errors = [f"{printable(row['name'])}: {printable(row['last_error'])}\n" for row in rows if row["last_error"]]
        sys.stdout.write("".join(errors))


def _query(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        printable(row["name"]), row["status"], str(row["batch"]), f"{row['rows_per_s']:.0f}", str(row["batch_ms"]),
        str(row["lag_messages"]), f"{row['lag_s']:.1f}", str(row["state_rows"]), age(row["updated_ms"]),
    )  # fmt: skip


def health(
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per broker.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Check that every broker group has a master that accepts messages; exit status 1 if one does not."""
    with brokers(target) as found:
        rows = [_health(broker) for broker in found]
    print_rows(rows, HEALTH_HEADINGS, _state, json_output=json_output, empty="there is no broker")
    bad = [row["broker"] for row in rows if row["state"] != "ok"]
    if bad:
        raise CommandFailed(f"not well: {', '.join(bad)}")


def _state(row: dict[str, Any]) -> tuple[str, ...]:
    return row["broker"], row["state"], row["problem"] or "-"


def _health(broker: Broker) -> dict[str, Any]:
    status = json_object(broker.ask(Command(RequestCode.CLUSTER_STATUS)).body, "to CLUSTER_STATUS")
    store = status.get("store") or {}
    problem = ""
    if store.get("failed"):
        problem = "the log failed: restart it, then lightmq store verify"
    elif store.get("disk_full"):
        problem = "the disk is full: free space or shorten the retention"
    elif status.get("quarantined"):
        problem = "the log is damaged in places: lightmq store verify; see docs/howto/damaged-store.md"
    numbers = {name: status.get(name, 0) for name in ("clients_connected", "sessions", "proxies", "topics")}
    return {"broker": broker.name, "state": "failed" if problem else "ok", "problem": problem, **numbers}
