"""``lightmq retained``: the retained messages of brokers, and ``retained clear``, which removes one."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.admin.clients import COUNT_DEFAULT, first_that_has, pages
from lightmq.cli.connections import ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import print_done, print_rows, printable
from lightmq.cli.times import age
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

retained = App(
    name="retained",
    help="List retained messages, or clear one.",
    help_format="plaintext",
    help_epilogue=epilogue("retained"),
)
HERE = ServerTarget()
HEADINGS = ("TOPIC", "BYTES", "QOS", "STORED", "EXPIRES")


@retained.default
def listing(
    topic_filter: Annotated[str, Parameter(help="Only topics that this filter matches: plant/+/temp, plant/#.")] = "#",
    *,
    contains: Annotated[str, Parameter(help="Only topics with this text.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of messages to list, by topic.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per message.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List retained messages with size, QoS and time; to see one: lightmq sub --topic TOPIC --count 1."""
    asked = {"filter": topic_filter, "contains": contains}
    with brokers(target) as found:
        rows = [row for broker in found for row in pages(broker, RequestCode.RETAINED_LIST, "retained", asked, count)]
    rows.sort(key=lambda row: str(row["topic"]))
    what = "" if topic_filter == "#" and not contains else " that is selected"
    print_rows(rows[:count], HEADINGS, _cells, json_output=json_output, empty=f"there is no retained message{what}")


@retained.command
def clear(
    topic: Annotated[str, Parameter(help="Topic, without wildcards.")],
    *,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Remove the retained message of a topic; what subscribers have got already stays with them."""
    command = Command(RequestCode.RETAINED_CLEAR, fields={"topic": topic})
    first_that_has(target, command, f"the topic {topic!r} has no retained message")
    print_done(f"cleared {topic}", json_output, topic=topic)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["bytes"] is None:
        return printable(row["topic"]), "damaged", "-", "-", "-"
    times = age(row["stored_ms"]), age(row["expires_ms"])
    return (printable(row["topic"]), str(row["bytes"]), str(row["qos"]), *times)
