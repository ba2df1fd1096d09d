"""``lightmq clients``: the MQTT clients connected now, and ``clients kick``, which disconnects one.

The proxies are asked through their broker, page by page, so that many clients cost no more than the lines shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.completing import CLIENTS
from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import CommandFailed, json_object, print_done, print_rows, printable, unreadable
from lightmq.cli.times import age
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

clients = App(
    name="clients",
    help="List connected MQTT clients, or disconnect one.",
    help_format="plaintext",
    help_epilogue=epilogue("clients"),
)
HERE = ServerTarget()
PAGE = 200
COUNT_DEFAULT = 100
HEADINGS = ("CLIENT", "USER", "ADDRESS", "MQTT", "SINCE", "IN FLIGHT", "BACKLOG", "FILTERS", "PROXY")


@clients.default
def listing(
    prefix: Annotated[str, CLIENTS, Parameter(help="Only client ids that begin with this.")] = "",
    *,
    contains: Annotated[str, Parameter(help="Only client ids with this text.")] = "",
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Only clients of this user.")] = "",
    address: Annotated[str, Parameter(help="Only addresses that begin with this.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of clients to list, by client id.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per client.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List connected MQTT clients: user, address, version, since when, in flight, backlog, subscriptions."""
    asked = {"prefix": prefix, "contains": contains, "user": user, "address": address}
    with brokers(target) as found:
        rows = [row for broker in found for row in _page(broker, asked, count)]
    rows.sort(key=lambda row: str(row["client"]))
    narrowed = any(asked.values())
    empty = "no connected client is selected" if narrowed else "no client is connected"
    print_rows(rows[:count], HEADINGS, _cells, json_output=json_output, empty=empty)


@clients.command
def kick(
    client: Annotated[str, CLIENTS, Parameter(help="Client id.")],
    *,
    end_session: Annotated[bool, Parameter(negative=(), help="End its session too: subscriptions, backlog.")] = False,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Disconnect a client; MQTT 5 clients get reason code 0x98 (administrative action). Its will is published.

    It may connect again at once: take its right away first.
    """
    fields = {"client": client, "end": "true" if end_session else "false"}
    first_that_has(target, Command(RequestCode.MQTT_KICK, fields=fields), f"no client with id {client!r} is connected")
    done = f"disconnected {client}{' and ended its session' if end_session else ''}"
    print_done(done, json_output, client=client, session_ended=end_session)


def first_that_has(target: ServerTarget, command: Command, otherwise: str) -> dict[str, Any]:
    """The answer of the first broker that finds what a request names. Raises CommandFailed when none does."""
    with brokers(target) as found:
        for broker in found:
            try:
                answer = broker.ask(Command(command.code, fields=dict(command.fields)))
            except Refused as refused:
                if refused.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            else:
                return json_object(answer.body, "to the request")
    raise CommandFailed(otherwise)


def pages(broker: Broker, code: int, member: str, fields: dict[str, str], count: int) -> Iterator[dict[str, Any]]:
    """The first lines of a list that a broker gives page by page."""
    after, left = "", count
    while left > 0:
        asked = fields | {"after": after, "limit": str(min(left, PAGE))}
        answer = json_object(broker.ask(Command(code, fields=asked)).body, "to a list")
        try:
            rows, after = answer[member], answer["next"]
        except KeyError as error:
            raise unreadable("to a list", error) from error
        for row in rows:
            yield {"broker": broker.name, **row}
        left -= len(rows)
        if not after:
            return


def _page(broker: Broker, fields: dict[str, str], count: int) -> Iterator[dict[str, Any]]:
    return pages(broker, RequestCode.MQTT_CLIENTS, "clients", fields, count)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    numbers = (row["in_flight"], row["backlog"], row["subscriptions"])
    where = f"{row['address']} ({row['protocol']})"
    texts = (printable(row["client"]), printable(row["user"] or "-"), printable(where), row["version"])
    return (*texts, age(row["since_ms"]), *map(str, numbers), printable(row["proxy"]))
