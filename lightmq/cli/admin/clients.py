"""``lightmq clients``: the MQTT clients connected now, and ``clients kick``, which disconnects one.

The proxies are asked through their broker, page by page, so that many clients cost no more than the lines shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from lightmq.cli.completing import CLIENTS
from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import CommandFailed, json_object, print_done, print_rows, printable, unreadable
from lightmq.cli.times import age, amount
from remoting.protocol.bodies.client_order import ClientOrder
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
HEADINGS = (
    "CLIENT", "USER", "ADDRESS", "MQTT", "SINCE", "IN/S", "OUT/S", "BYTES IN/S", "BYTES OUT/S", "IN FLIGHT", "BACKLOG",
    "FILTERS", "PROXY",
)  # fmt: skip
SortWord = Literal[
    "id", "since", "rate-in", "rate-out", "byte-rate-in", "byte-rate-out", "messages-in", "messages-out", "bytes-in",
    "bytes-out", "in-flight", "backlog",
]  # fmt: skip
FIGURE_OF = {
    "since": "since_ms", "rate-in": "messages_in_per_s", "rate-out": "messages_out_per_s",
    "byte-rate-in": "bytes_in_per_s", "byte-rate-out": "bytes_out_per_s",
}  # fmt: skip
"""Word of `--sort` -> what the list is sorted by, where it is not the same word."""


@clients.default
def listing(
    prefix: Annotated[str, CLIENTS, Parameter(help="Only client ids that begin with this.")] = "",
    *,
    contains: Annotated[str, Parameter(help="Only client ids with this text.")] = "",
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Only clients of this user.")] = "",
    address: Annotated[str, Parameter(help="Only addresses that begin with this.")] = "",
    sort: Annotated[
        SortWord,
        Parameter(help="Order: the largest first, and of `since` the newest; by id from A on. Rates are per second."),
    ] = "id",
    reverse: Annotated[bool, Parameter(negative=(), help="The other way round.")] = False,
    count: Annotated[int, Parameter(help="Maximum number of clients to list, in this order.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per client.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List connected MQTT clients: user, address, version, since when, rates, in flight, backlog, subscriptions.

    Rates are those of the last 5 to 10 seconds; the client that sends most: `--sort rate-in --count 5`. Clients that
    are away: `lightmq sessions --state away`.
    """
    narrowing = {"prefix": prefix, "contains": contains, "user": user, "address": address}
    figure = FIGURE_OF.get(sort, sort.replace("-", "_"))
    order = ClientOrder(figure, falls=(sort == "id") is reverse)
    asked = narrowing | {"sort": order.sort}
    with brokers(target) as found:
        rows = [row for broker in found for row in _page(broker, asked, count)]
    rows.sort(key=lambda row: order.key(order.value(row), row["client"]))
    narrowed = any(narrowing.values())
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
    rates = (f"{row['messages_in_per_s']:,.1f}", f"{row['messages_out_per_s']:,.1f}")
    bytes_rates = (amount(row["bytes_in_per_s"]), amount(row["bytes_out_per_s"]))
    return (*texts, age(row["since_ms"]), *rates, *bytes_rates, *map(str, numbers), printable(row["proxy"]))
