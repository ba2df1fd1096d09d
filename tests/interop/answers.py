"""Answers of two servers compared field by field: what differs, and whether that is declared with its reason.

An answer is flattened into `code`, `fields.NAME` and `body.PATH`: a JSON body (also RocketMQ's, with objects as keys)
by its members, stored messages by their parts, anything else as text. Remarks are prose and not compared. Places in
lists are numbers, lists of equal members in their order. `VOLATILE` parts are compared by their kind only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from remoting.protocol.errors import LightMQError
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored

ABSENT = "(absent)"
VOLATILE = re.compile(
    r"(?i)timestamp|time|msgId|transactionId|offsetMsgId|dataVersion|\.version$|clientAddr|storeHost|bornHost"
    r"|brokerAddr|physicOffset|position|Phyoffset|recallHandle|extraInfo|remoteIP|port$|UNIQ_KEY|subVersion|consumeTps"
    r"|physicSize|waitingMs|token$|reviveQid"
)
"""Parts that depend on the clock, on ports and on positions in the log."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of an answer that is not the same."""

    request: str
    part: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.request} {self.part}: theirs {self.theirs[:160]}, ours {self.ours[:160]}"


@dataclass(frozen=True, slots=True)
class Justified:
    """Differences that are meant, by patterns that match the whole request and the whole part, and why."""

    request: str
    part: str
    reason: str

    def covers(self, difference: Difference) -> bool:
        """Whether this is the reason of a difference."""
        found = re.fullmatch(self.request, difference.request), re.fullmatch(self.part, difference.part)
        return all(found)


def compared(theirs: dict[str, Command], ours: dict[str, Command]) -> list[Difference]:
    """Every part that differs, in the order of the requests."""
    assert list(theirs) == list(ours), "the script sent other requests to one of them"
    found = []
    for request, answer in theirs.items():
        left, right = dict(parts(answer)), dict(parts(ours[request]))
        for part in dict.fromkeys((*left, *right)):
            one, other = left.get(part, ABSENT), right.get(part, ABSENT)
            if one != other:
                found.append(Difference(request, part, one, other))
    return found


def parts(answer: Command) -> Iterator[tuple[str, str]]:
    """The parts of an answer and their values as text."""
    yield "code", str(answer.code)
    for name, value in sorted(answer.fields.items()):
        yield from _shown(f"fields.{name}", value)
    if answer.body:
        yield from _body(bytes(answer.body))


def _body(body: bytes) -> Iterator[tuple[str, str]]:
    messages = _messages(body)
    if messages is not None:
        yield from _flat("body", messages)
        return
    try:
        value = fastjson.loads(body)
    except LightMQError:
        yield "body", repr(body[:200])
        return
    yield from _flat("body", value)


def _messages(body: bytes) -> list[dict[str, Any]] | None:
    try:
        found = list(iter_stored(body))
    except (LightMQError, ValueError):
        return None
    return [
        {
            "topic": each.topic.decode(), "body": each.body.decode("utf-8", "replace"), "queueId": each.queue_id,
            "queueOffset": each.queue_offset, "position": each.position, "flag": each.flag, "sysFlag": each.sys_flag,
            "bornTimestamp": each.born_ms, "storeTimestamp": each.store_ms, "bornHost": each.born_host[0],
            "storeHost": each.store_host[0], "reconsumeTimes": each.reconsume_times,
            "properties": {name.decode(): value.decode("utf-8", "replace") for name, value in each.properties},
        }
        for each in found
    ]  # fmt: skip


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in sorted(value.items()):
            yield from _flat(f"{path}.{_key(name)}", inner)
        if not value:
            yield path, "{}"
    elif isinstance(value, list):
        rows = value if _are_messages(value) else sorted(value, key=lambda each: repr(list(_flat("", each))))
        for index, inner in enumerate(rows):
            yield from _flat(f"{path}[{index}]", inner)
        if not value:
            yield path, "[]"
    elif value is not None:  # RocketMQ leaves out what is null, some of its bodies do not
        yield from _shown(path, value)


def _are_messages(value: list[Any]) -> bool:
    return all(isinstance(each, dict) and {"queueOffset", "physicOffset"} & each.keys() for each in value)


def _key(name: str) -> str:
    """A key that is an object (a queue) in one form."""
    try:
        found = json.loads(name)
    except ValueError:
        return name
    return json.dumps(found, sort_keys=True, separators=(",", ":")) if isinstance(found, dict) else name


def _shown(path: str, value: object) -> Iterator[tuple[str, str]]:
    if VOLATILE.search(path.partition(".")[2] or path):
        yield path, "(volatile)"
    else:
        yield path, json.dumps(value, sort_keys=True) if not isinstance(value, str) else value


def unjustified(differences: Iterable[Difference], declared: Iterable[Justified]) -> list[Difference]:
    """The differences without a declared reason."""
    rules = tuple(declared)
    return [each for each in differences if not any(rule.covers(each) for rule in rules)]
