"""``lightmq timers``: how many delayed messages wait, which are next, one of them; its recall and change of time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.connections import Broker, ServerTarget, brokers
from lightmq.cli.outcome import CommandFailed, CommandMisused, json_object, print_rows, printable, unreadable
from lightmq.cli.times import Seconds, age
from remoting.protocol.bodies.recall_handle import RecallHandle, decode_handle
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

HERE = ServerTarget()
PAGE = 1_000
UNCHANGED = -1.0
"""Value of --delay when it is not given."""
DELAY_S_MAX = 400 * 86_400
"""No broker allows a longer one."""
HEADINGS = ("DUE", "TOPIC", "BYTES", "BROKER", "HANDLE")


def timers(
    handle: Annotated[str, Parameter(help="Handle of one message, shown with its properties.")] = "",
    *,
    count: Annotated[int, Parameter(help="List this many messages, those due next.")] = 0,
    recall: Annotated[bool, Parameter(negative=(), help="Recall the message: it will not be delivered.")] = False,
    delay: Annotated[
        Seconds, Parameter(help="Deliver the message this long from now instead: 90s, 2h; 0: at once.")
    ] = UNCHANGED,
    json_output: Annotated[
        bool, Parameter(name=["--json"], negative=(), help="One JSON object per broker or message.")
    ] = False,
    target: ServerTarget = HERE,
) -> None:
    """Show how many delayed messages wait and for how long, list the next ones, show, recall or reschedule one."""
    if (recall or delay != UNCHANGED) and not handle:
        raise CommandMisused("name the message by its handle: lightmq timers HANDLE --recall, or --delay")
    if recall and delay != UNCHANGED:
        raise CommandMisused("--recall and --delay exclude each other")
    with brokers(target) as found:
        if handle:
            broker, named = _broker_of(found, handle)
            if recall:
                sys.stdout.write(_recalled(broker, named, handle))
            elif delay != UNCHANGED:
                sys.stdout.write(_rescheduled(broker, named, handle, delay))
            else:
                _one(broker, handle, json_output=json_output)
            return
        if count:
            rows = sorted((row for broker in found for row in _page(broker, count)), key=lambda row: row["due_ms"])
            print_rows(rows[:count], HEADINGS, _cells, json_output=json_output, empty="no delayed message waits")
            return
        numbers = [{"broker": broker.name, **_answer(broker, {})} for broker in found]
    sys.stdout.write("".join(json.dumps(one) + "\n" if json_output else summary(one) for one in numbers))


def _broker_of(found: list[Broker], given: str) -> tuple[Broker, RecallHandle]:
    """The broker where the message of a handle waits, and what the handle names."""
    try:
        handle = decode_handle(given)
    except RemoteViolation as error:
        raise CommandMisused(f"{error.reason}; lightmq timers --count 10 shows handles") from error
    broker = next((broker for broker in found if broker.name == handle.broker), None)
    if broker is None:
        raise CommandFailed(f"there is no broker {handle.broker!r}, where the message waits")
    return broker, handle


def _one(broker: Broker, given: str, *, json_output: bool) -> None:
    try:
        row = {"broker": broker.name, **_answer(broker, {"handle": given})["timer"]}
        sys.stdout.write(json.dumps(row) + "\n" if json_output else detail(row))
    except (KeyError, TypeError) as error:
        raise unreadable("to TIMERS", error) from error


def _recalled(broker: Broker, handle: RecallHandle, given: str) -> str:
    fields = {"producerGroup": "lightmq-timers", "topic": handle.topic, "recallHandle": given}
    answer = broker.ask(Command(RequestCode.RECALL_MESSAGE, fields=fields))
    return f"recalled {printable(answer.fields.get('msgId', ''))} of {printable(handle.topic)}\n"


def _rescheduled(broker: Broker, handle: RecallHandle, given: str, delay_s: float) -> str:
    if not 0 <= delay_s <= DELAY_S_MAX:
        raise CommandMisused(f"a delay of {delay_s} s is not between 0 and {DELAY_S_MAX}")
    fields = {"topic": handle.topic, "recallHandle": given, "delayMs": str(round(delay_s * 1_000))}
    answer = broker.ask(Command(RequestCode.RESCHEDULE_MESSAGE, fields=fields))
    moved = answer.fields.get("recallHandle", "")
    return f"{moved}\n" if moved else f"delivered {printable(answer.fields.get('msgId', ''))}\n"


def _page(broker: Broker, count: int) -> Iterator[dict[str, Any]]:
    """The messages of a broker that are due next."""
    fields, left = {"limit": str(min(count, PAGE))}, count
    try:
        while left > 0:
            answer = _answer(broker, fields)
            for row in answer["timers"]:
                yield {"broker": broker.name, **row}
            left -= len(answer["timers"])
            if not answer["more"]:
                return
            fields = {"limit": str(min(left, PAGE)), "after": answer["next"]}
    except (KeyError, TypeError) as error:
        raise unreadable("to TIMERS", error) from error


def _answer(broker: Broker, fields: dict[str, str]) -> dict[str, Any]:
    return json_object(broker.ask(Command(RequestCode.TIMERS, fields=fields)).body, "to TIMERS")


def summary(numbers: dict[str, Any]) -> str:
    """The numbers of one broker."""
    next_ms = numbers.get("next_due_ms")
    lines = [
        f"broker    {numbers['broker']}",
        f"waiting   {numbers.get('waiting', 0)} messages",
        f"next due  {'-' if next_ms is None else f'{moment(next_ms)} ({age(next_ms)})'}",
    ]
    lines += [
        f"  within {label:<6} {count}" for label, count in numbers.get("by_delay", {}).items() if label != "later"
    ]
    lines += [f"  later         {numbers.get('by_delay', {}).get('later', 0)}"]
    fullest = numbers.get("fullest_second")
    if fullest:
        lines.append(f"most at   {moment(fullest['second_ms'])}: {fullest['messages']} due in one second")
    return "\n".join(lines) + "\n"


def detail(row: dict[str, Any]) -> str:
    """One message with its properties."""
    lines = [
        f"due     {moment(row['due_ms'])} ({age(row['due_ms'])})",
        f"stored  {moment(row['stored_ms'])}",
        f"topic   {printable(row['topic'])}",
        f"id      {printable(row['id'])}",
        f"body    {row['body_bytes']} bytes",
        f"broker  {row['broker']}",
    ]
    lines += [f"  {printable(key)} = {printable(value)}" for key, value in sorted(row["properties"].items())]
    return "\n".join(lines) + "\n"


def moment(time_ms: int) -> str:
    """A time in ms as people read it, UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    topic = printable(row["topic"])
    return age(row["due_ms"]), topic, str(row["body_bytes"]), row["broker"], row["handle"]
