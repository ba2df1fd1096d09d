"""`/groups`: consumer groups with their lag by queue, moving a group to another place."""

from __future__ import annotations

from typing import Any

import msgspec

from console.api.operations import INTEGER_MAX, PAGE, SEARCH, TEXT, ApiCall, Operation, Parameter
from console.api.pages import Page, decode_cursor, encode_cursor, slice_page
from console.api.problems import ApiProblem, bad, not_found
from console.cluster import Asked, json_object, or_none
from console.lags import rows
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode

TAG = "Queues and groups"
GROUP = Parameter("group", "The name of the consumer group.", TEXT, required=True)
SORT = Parameter(
    "sort", "The order: by name, or the 1,000 groups furthest behind.", default="name", choices=("name", "lag")
)
NOW = -1
FURTHEST_MAX = 1_000
"""Most groups in the list by lag."""
TIME_MS_MAX = 2**53 - 1


class GroupRow(msgspec.Struct):
    """A consumer group, or that of a shared subscription, named by its whole filter.

    Its lag is that of all its queues in messages, and of the worst one in seconds.
    """

    name: str
    topics: list[str]
    """Some of them; `topics_total` says how many there are."""
    topics_total: int
    queues: int
    lag: int
    lag_s: float
    members: int
    """Connected consumers."""


class GroupQueue(msgspec.Struct):
    """How far a group is in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int
    end: int
    lag: int
    lag_s: float
    committed_ms: int


class Member(msgspec.Struct):
    """A connected consumer."""

    client: str
    address: str = ""
    language: str = ""
    version: str = ""


class GroupDetail(msgspec.Struct):
    """One group with its queues and members."""

    name: str
    lag: int
    lag_s: float
    queues: list[GroupQueue]
    members: list[Member]


class ResetForm(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group continues: `earliest`, `latest`, or the first message stored at or after a time."""

    topic: str
    to: str = ""
    time_ms: int | None = None
    offset: int | None = None
    queue: int | None = None
    """Only this queue; an offset needs one."""


class Skip(msgspec.Struct, forbid_unknown_fields=True):
    """Skip everything that waits in a topic."""

    topic: str


class MovedQueue(msgspec.Struct):
    """Where a group continues in one queue."""

    topic: str
    broker: str
    queue: int
    offset: int


class MovedGroup(msgspec.Struct):
    """Where a group continues."""

    name: str
    queues: list[MovedQueue]


async def list_groups(call: ApiCall) -> Any:
    """Return a page of groups that have committed offsets, by name, or those furthest behind."""
    search, limit = call.text("search"), call.number("limit")
    if call.text("sort") == "lag":
        asked = await call.cluster.ask_all(
            call.viewer, Code.GROUP_LIST, {"order": "lag", "contains": search, "limit": str(FURTHEST_MAX)}
        )
        rows = _merged(asked)
        rows.sort(key=lambda group: (-group["lag"], -group["lag_s"], group["name"]))
        return slice_page(call, rows[:FURTHEST_MAX], asked.missing)
    _, after = decode_cursor(call.text("cursor"))
    asked = await call.cluster.ask_all(
        call.viewer, Code.GROUP_LIST, {"contains": search, "after": after, "limit": str(limit)}
    )
    # What a broker has not listed yet comes behind its `next`: nothing beyond the lowest of these is complete.
    marks = [str(body["next"]) for _broker, body in asked.objects() if body["next"]]
    whole = min(marks, default="", key=str.encode)
    rows = sorted(_merged(asked), key=lambda group: group["name"].encode())
    complete = [row for row in rows if not whole or row["name"].encode() <= whole.encode()]
    shown = complete[:limit]
    following = shown[-1]["name"] if shown and len(shown) < len(rows) else whole
    totals = [int(body["total"]) for _broker, body in asked.objects()]
    return {
        "items": shown, "next": encode_cursor("", following) if following else "", "missing": asked.missing,
        "total": totals[0] if len(totals) == 1 and not search else None,
    }  # fmt: skip


def _merged(asked: Asked) -> list[dict[str, Any]]:
    """Return one row per group of the rows of all brokers."""
    found: dict[str, dict[str, Any]] = {}
    for _broker, body in asked.objects():
        for row in body["groups"]:
            known = found.setdefault(row["name"], row)
            if known is not row:
                topics = sorted({*known["topics"], *row["topics"]})
                known |= {
                    "topics": topics, "topics_total": max(len(topics), known["topics_total"], row["topics_total"]),
                    "queues": known["queues"] + row["queues"], "lag": known["lag"] + row["lag"],
                    "lag_s": max(known["lag_s"], row["lag_s"]), "members": max(known["members"], row["members"]),
                }  # fmt: skip
    return list(found.values())


async def get_group(call: ApiCall) -> Any:
    """Return one group."""
    name = call.text("group")
    asked = await _stats(call, name)
    found = [row for broker, body in asked.objects() for row in rows(broker, [(name, body)])]
    members = await _members(call, name)
    if not found and not members:
        raise not_found(f"no broker knows offsets or members of a group {name!r}")
    for row in found:
        del row["group"]
    return {
        "name": name, "lag": sum(row["lag"] for row in found),
        "lag_s": max((row["lag_s"] for row in found), default=0.0),
        "queues": found, "members": members, "missing": asked.missing,
    }  # fmt: skip


async def reset_group(call: ApiCall) -> Any:
    """Move a group to another place in a topic."""
    given: ResetForm = call.body
    ways = [given.to != "", given.time_ms is not None, given.offset is not None]
    if sum(ways) != 1:
        raise bad("give one of to, time_ms and offset")
    fields = {"topic": given.topic, "group": call.text("group"), "isForce": "true"}
    if given.queue is not None:
        if not 0 <= given.queue < 2**16:
            raise bad("queue is from 0 to 65535")
        fields["queueId"] = str(given.queue)
    if given.offset is not None:
        if given.queue is None or not 0 <= given.offset <= INTEGER_MAX:
            raise bad("an offset is not negative, and needs a queue")
        fields["offset"] = str(given.offset)
    elif given.time_ms is not None:
        if not 0 <= given.time_ms <= TIME_MS_MAX:
            raise bad(f"time_ms is from 0 to {TIME_MS_MAX}")
        fields["timestamp"] = str(given.time_ms)
    elif given.to in ("earliest", "latest"):
        fields["timestamp"] = "0" if given.to == "earliest" else str(NOW)
    else:
        raise bad("to is earliest or latest")
    return await _move(call, fields)


async def skip_group(call: ApiCall) -> Any:
    """Skip everything that waits for a group in a topic."""
    return await _move(
        call, {"topic": call.body.topic, "group": call.text("group"), "isForce": "true", "timestamp": str(NOW)}
    )  # fmt: skip


async def _move(call: ApiCall, fields: dict[str, str]) -> dict[str, Any]:
    """Have every broker that has the topic move the group."""
    if not fields["topic"] or not fields["group"]:
        raise bad("name a group and a topic")
    moved: list[dict[str, Any]] = []
    refusal: Refused | None = None
    done = False
    for broker in await call.cluster.masters():
        try:
            answer = await call.cluster.ask(broker, call.viewer, Code.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        except Refused as refused:
            if refused.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            refusal = refused
            continue
        done = True
        table = json_object(answer).get("offsetTable") or {}
        moved += [_moved(broker, key, offset) for key, offset in _pairs(table)]
    if not done:
        raise refusal or ApiProblem(503, "unavailable", "the controllers know no broker group")
    return {"name": fields["group"], "queues": moved}


def _pairs(table: Any) -> list[tuple[Any, Any]]:
    return list(table.items()) if isinstance(table, dict) else [(one, one.get("offset", 0)) for one in table]


def _moved(broker: str, key: Any, offset: Any) -> dict[str, Any]:
    queue = msgspec.json.decode(key) if isinstance(key, str) else key
    return {"topic": queue["topic"], "broker": broker, "queue": int(queue["queueId"]), "offset": int(offset)}


async def _stats(call: ApiCall, name: str) -> Asked:
    try:
        return await call.cluster.ask_all(call.viewer, Code.GET_CONSUME_STATS, {"consumerGroup": name})
    except Refused as refused:
        if refused.code == ResponseCode.NO_PERMISSION:
            raise
        return Asked({}, {})


async def _members(call: ApiCall, name: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for broker in await call.cluster.masters():
        answer = await or_none(
            call.cluster.ask(broker, call.viewer, Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": name})
        )
        for one in json_object(answer).get("connectionSet", ()) if answer is not None else ():
            client = str(one.get("clientId", ""))
            found[client] = {
                "client": client, "address": str(one.get("clientAddr", "")), "language": str(one.get("language", "")),
                "version": str(one.get("version", "")),
            }  # fmt: skip
    return [found[client] for client in sorted(found)]


OPERATIONS = (
    Operation(
        name="list_groups", method="GET", path="/groups", summary="List consumer groups and their lag", tag=TAG,
        call=list_groups, answer=Page[GroupRow],
        query=(SEARCH, SORT, *PAGE),
    ),
    Operation(
        name="get_group", method="GET", path="/groups/{group}", summary="Show the lag of a group by queue, and members",
        tag=TAG, call=get_group, in_path=(GROUP,), answer=GroupDetail,
    ),
    Operation(
        name="reset_group", method="POST", path="/groups/{group}/reset", summary="Move a group to another place",
        tag=TAG, call=reset_group, in_path=(GROUP,), body=ResetForm, answer=MovedGroup,
    ),
    Operation(
        name="skip_group", method="POST", path="/groups/{group}/skip", summary="Skip what waits for a group", tag=TAG,
        call=skip_group, in_path=(GROUP,), body=Skip, answer=MovedGroup,
    ),
)  # fmt: skip
