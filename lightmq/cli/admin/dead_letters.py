"""``lightmq dead-letters``: messages that consumer groups gave up; ``dead-letters resend`` gives one back."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.admin.clients import COUNT_DEFAULT, pages
from lightmq.cli.completing import GROUPS
from lightmq.cli.connections import ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import CommandFailed, CommandMisused, json_object, print_done, print_rows, printable
from lightmq.cli.times import age
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

dead_letters = App(
    name="dead-letters",
    help="List messages that consumer groups gave up on, or send one again.",
    help_format="plaintext",
    help_epilogue=epilogue("dead-letters"),
)
HERE = ServerTarget()
HEADINGS = ("GROUP", "PLACE", "TOPIC", "TRIES", "GIVEN UP", "BYTES", "KEYS")


@dead_letters.default
def listing(
    group: Annotated[str, GROUPS, Parameter(help="Only those of this consumer group.")] = "",
    *,
    contains: Annotated[str, Parameter(help="Only groups with this text in their name.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of messages to list, by group.")] = COUNT_DEFAULT,
    json_output: Annotated[
        bool, Parameter(name=["--json"], negative=(), help="One JSON object per message, with its body.")
    ] = False,
    target: ServerTarget = HERE,
) -> None:
    """List dead letters, those of each group newest first; PLACE is what `resend` takes."""
    fields = {"group": group, "contains": contains}
    asked = {name: value for name, value in fields.items() if value}
    with brokers(target) as found:
        rows = [
            row for broker in found for row in pages(broker, RequestCode.DEAD_LETTERS, "dead_letters", asked, count)
        ]
    rows.sort(key=lambda row: str(row["group"]))
    print_rows(rows[:count], HEADINGS, _cells, json_output=json_output, empty="there are no dead letters")


@dead_letters.command
def resend(
    group: Annotated[str, GROUPS, Parameter(help="Consumer group that gave up on the message.")],
    place: Annotated[str, Parameter(help="Where the message is: BROKER/QUEUE/OFFSET, as the list shows it.")],
    *,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Send a dead letter to its group again, with all its retries; other groups do not get it."""
    name, _, rest = place.partition("/")
    queue, _, offset = rest.partition("/")
    if not (queue.isdecimal() and offset.isdecimal()):
        raise CommandMisused(f"{place!r} is no place of a dead letter: it is BROKER/QUEUE/OFFSET, as broker-a/0/17")
    command = Command(RequestCode.RESEND_DEAD_LETTER, fields={"group": group, "queue": queue, "offset": offset})
    with brokers(target) as found:
        broker = next((one for one in found if one.name == name), None)
        if broker is None:
            raise CommandFailed(f"there is no broker {name!r}; lightmq dead-letters {group} shows the places")
        try:
            answer = json_object(broker.ask(command).body, "to RESEND_DEAD_LETTER")
        except Refused as refused:
            if refused.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            raise CommandFailed(str(refused.remark)) from None
    done = f"sent again to {group}: {answer['topic']} at {answer['offset']}"
    print_done(done, json_output, group=group, topic=answer["topic"], offset=answer["offset"])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    place = f"{row['broker']}/{row['queue']}/{row['offset']}"
    if row.get("damaged"):
        return printable(row["group"]), place, "damaged", "-", "-", "-", "-"
    texts = printable(row["topic"]), str(row["tries"]), age(row["stored_ms"]), str(row["bytes"])
    return printable(row["group"]), place, *texts, printable(row["keys"])
