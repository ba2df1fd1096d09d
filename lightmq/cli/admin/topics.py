"""``lightmq topics``: every topic of every broker with its queues and message counts; ``create`` and ``update``.

MQTT topics below them are found by any part of their whole name (``--search``).

Invariant: a topic is changed on every broker that has it, or the command fails.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter

from lightmq.cli.admin.clients import pages
from lightmq.cli.completing import TOPICS
from lightmq.cli.connections import ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import Json
from lightmq.cli.outcome import (
    CommandFailed,
    CommandMisused,
    json_object,
    print_done,
    print_rows,
    printable,
    unreadable,
)
from lightmq.cli.times import duration_ms, size_bytes
from remoting.client.admin import topic_fields
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

topics = App(
    name="topics",
    help="List topics with queues and message counts, create or change one.",
    help_format="plaintext",
    help_epilogue=epilogue("topics"),
)
HERE = ServerTarget()
QUEUES_DEFAULT = 4
LIKE_THE_LOG = "log"
RETENTION_HELP = "How long the topic keeps messages: 12h, 7d, forever, or log for as long as the log does."
RETENTION_SIZE_HELP = "How much the topic keeps on each broker: 500MB, 2GiB, unlimited, or log for no limit of its own."
HEADINGS = ("TOPIC", "BROKER", "QUEUES", "MESSAGES", "FIRST-LAST")
SEARCH_HEADINGS = ("TOPIC", "BROKER", "MESSAGES", "BELOW")
COUNT_DEFAULT = 100


@topics.default
def listing(
    prefix: Annotated[str, TOPICS, Parameter(help="Only topics that begin with this.")] = "",
    *,
    search: Annotated[str, Parameter(help="Find MQTT topics of any depth by a part of their whole name.")] = "",
    count: Annotated[int, Parameter(help="Maximum number of topics that a search lists.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per topic.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List topics with their queues and message counts, or the MQTT topics with a text in their names."""
    if search:
        if prefix:
            raise CommandMisused("give the beginning of a topic or --search, not both")
        _searched(search, count, json_output=json_output, target=target)
        return
    rows: list[dict[str, Any]] = []
    with brokers(target) as found:
        for broker in found:
            listed = parse(broker.ask(Command(RequestCode.TOPIC_LIST)).body)
            rows += [{"broker": broker.name, **row} for row in listed if str(row.get("topic", "")).startswith(prefix)]
    rows.sort(key=lambda row: (row["topic"], row["broker"]))
    empty = f"no topic begins with {prefix}" if prefix else "there are no topics yet: publish something"
    if "/" in prefix:
        empty += f"; MQTT topics are found by: lightmq topics --search {prefix}"
    print_rows(rows, HEADINGS, _cells, json_output=json_output, empty=empty)


def _searched(text: str, count: int, *, json_output: bool, target: ServerTarget) -> None:
    """List the highest levels of MQTT topics that have a text in their names."""
    with brokers(target) as found:
        asked = {"contains": text}
        rows = [row for broker in found for row in pages(broker, RequestCode.TOPIC_TREE, "children", asked, count + 1)]
    rows.sort(key=lambda row: (row["topic"], row["broker"]))
    empty = f"no MQTT topic has {text!r} in its name"
    print_rows(rows[:count], SEARCH_HEADINGS, _found, json_output=json_output, empty=empty)
    if len(rows) > count:
        sys.stderr.write(f"there are more: --count is {count}\n")


def _found(row: dict[str, Any]) -> tuple[str, ...]:
    return printable(row["topic"]), str(row["broker"]), str(row["messages"]), str(row["below"])


@topics.command
def create(
    name: Annotated[str, Parameter(help="Name of the topic.")],
    *,
    queues: Annotated[int, Parameter(help="Queues on each broker.")] = QUEUES_DEFAULT,
    batch: Annotated[bool, Parameter(negative=(), help="A batch topic: producers may store whole batches.")] = False,
    retention: Annotated[str, Parameter(help=RETENTION_HELP)] = "",
    retention_size: Annotated[str, Parameter(help=RETENTION_SIZE_HELP)] = "",
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Create a topic on every broker, or change its number of queues; whether it takes batches is fixed at creation."""
    attributes = kept_attributes(retention, retention_size)
    if batch:
        attributes["queue.type"] = "BatchCQ"
    with brokers(target) as found:
        for broker in found:
            fields = topic_fields(name, queues, attributes=attributes)
            broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
        names = [broker.name for broker in found]
    done = f"created {name} with {queues} queues on {_on(names)}"
    print_done(done, json_output, topic=name, queues=queues, brokers=names)


@topics.command
def update(
    name: Annotated[str, TOPICS, Parameter(help="Name of the topic.")],
    *,
    queues: Annotated[int | None, Parameter(help="Queues on each broker.")] = None,
    retention: Annotated[str, Parameter(help=RETENTION_HELP)] = "",
    retention_size: Annotated[str, Parameter(help=RETENTION_SIZE_HELP)] = "",
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Change a topic on every broker that has it; attributes that are not given stay as they are."""
    attributes = kept_attributes(retention, retention_size)
    with brokers(target) as found:
        for broker in found:
            answer = broker.ask(Command(RequestCode.GET_TOPIC_CONFIG, fields={"topic": name}))
            known = json.loads(answer.body)
            fields = topic_fields(name, queues or QUEUES_DEFAULT, perm=known["perm"], attributes=attributes)
            if queues is None:
                fields |= {key: str(known[key]) for key in ("readQueueNums", "writeQueueNums")}
            kept = {"topicFilterType": known["topicFilterType"], "topicSysFlag": str(known["topicSysFlag"])}
            fields |= {**kept, "order": str(known["order"]).lower()}
            broker.ask(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
        names = [broker.name for broker in found]
    print_done(f"changed {name} on {_on(names)}", json_output, topic=name, brokers=names)


@topics.command
def delete(
    name: Annotated[str, TOPICS, Parameter(help="Name of the topic.")],
    *,
    yes: Annotated[bool, Parameter(name=["--yes"], negative=(), help="Do not ask.")] = False,
    json_output: Json = False,
    target: ServerTarget = HERE,
) -> None:
    """Delete a topic with its messages and the offsets of groups in it, on every broker."""
    if not yes:
        raise CommandFailed(f"its messages cannot be brought back: lightmq topics delete {name} --yes")
    with brokers(target) as found:
        known: list[str] = []
        for broker in found:
            listed = parse(broker.ask(Command(RequestCode.TOPIC_LIST)).body)
            if any(row["topic"] == name for row in listed):
                broker.ask(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": name}))
                known.append(broker.name)
    if not known:
        raise CommandFailed(f"no broker has a topic {name!r}")
    print_done(f"deleted {name} on {_on(known)}", json_output, topic=name, brokers=known)


def _on(brokers: list[str]) -> str:
    return "1 broker" if len(brokers) == 1 else f"{len(brokers)} brokers"


def kept_attributes(retention: str, retention_size: str) -> dict[str, str | None]:
    """The attributes that limit how long and how much a topic keeps; `log` removes one. Raises CommandFailed."""
    attributes: dict[str, str | None] = {}
    if retention:
        attributes["retention.ms"] = None if retention == LIKE_THE_LOG else str(duration_ms(retention))
    if retention_size:
        attributes["retention.bytes"] = None if retention_size == LIKE_THE_LOG else str(size_bytes(retention_size))
    return attributes


def parse(body: bytes) -> list[dict[str, Any]]:
    """The topics of a broker's answer. Raises CommandFailed when it is not one."""
    try:
        return [row for row in json_object(body, "to TOPIC_LIST")["topics"] if row["topic"]]
    except (KeyError, TypeError) as error:
        raise unreadable("to TOPIC_LIST", error) from error


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    queues = row.get("queues", [])
    counts = [queue["max"] - queue["min"] for queue in queues]
    spans = " ".join(f"{queue['min']}-{queue['max']}" for queue in queues)
    return (str(row["topic"]), str(row["broker"]), str(len(queues)), str(sum(counts)), spans)
