"""`/access/rules`, `/access/test`, `/quotas`, `/audit`: what is allowed, how much of it, and what was done."""

from __future__ import annotations

from typing import Any

import msgspec

from console.api.operations import CURSOR, INTEGER, LIMIT, PAGE, ApiCall, Operation, Parameter
from console.api.pages import Page, decode_cursor, encode_cursor, page_over, slice_page
from console.api.problems import bad, not_found
from console.audit import acts_page
from console.cluster import json_object
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from runtime.reasons import in_words

TAG = "Access"
TESTED_ACTIONS = ("publish", "subscribe", "will", "history", "deliver", "consume", "admin", "monitor")


class RuleRow(msgspec.Struct):
    """One line of the access list, with the file and line it comes from, or the user that a request has made."""

    on: str
    """What it applies to: `keys` of requests, or `MQTT` clients."""
    who: str
    place: str
    rule: str
    broker: str = ""


class AccessQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """May this client do this?"""

    action: str
    topic: str = ""
    user: str = ""
    client_id: str = ""
    qos: int = 0
    retain: bool = False


class AccessAnswer(msgspec.Struct):
    """The verdict, and the rule that decides."""

    allowed: bool
    reason: str = ""
    text: str = ""
    """The reason in words."""
    rule: str = ""
    place: str = ""


class Quota(msgspec.Struct):
    """A limit and how much of it is used."""

    name: str
    where: str
    limit: float | None = None
    used: float | None = None


class AuditRecord(msgspec.Struct):
    """An administrative act."""

    id: str
    server: str
    """The broker or controller that carried it out; ids are its own."""
    time_ms: int
    who: str
    role: str = ""
    address: str = ""
    act: str = ""
    target: str = ""
    outcome: str = ""
    road: str = ""


async def list_rules(call: ApiCall) -> Any:
    """Return a page of the rules in force."""
    return await page_over(call, Code.ACCESS_RULES, "rules", {})


async def test_access(call: ApiCall) -> Any:
    """Return the verdict about a client that need not exist."""
    given: AccessQuestion = call.body
    if given.action not in TESTED_ACTIONS:
        raise bad(f"action is one of {', '.join(TESTED_ACTIONS)}")
    fields = {
        "user": given.user, "client": given.client_id, "action": given.action, "topic": given.topic,
        "qos": str(given.qos), "retain": str(given.retain).lower(),
    }  # fmt: skip
    failure: LightMQError | None = None
    for broker in await call.cluster.masters():
        try:
            answer = json_object(await call.cluster.ask(broker, call.viewer, Code.ACCESS_TEST, fields))
            place, _, rule = str(answer["rule"]).partition(": ")
            text = in_words(str(answer["reason"])) if answer["reason"] else ""
            return {**answer, "text": text, "rule": rule, "place": place}
        except Refused as refused:
            failure = refused
    raise failure or not_found("the controllers know no broker group")


async def list_quotas(call: ApiCall) -> Any:
    """Return a page of limits."""
    asked = await call.cluster.ask_all(call.viewer, Code.QUOTAS)
    rows: list[dict[str, Any]] = []
    missing = dict(asked.missing)
    for broker, body in asked.objects():
        parts = [(broker, body["broker"]), *((proxy["name"], proxy) for proxy in body["proxies"])]
        rows += [row for where, part in parts for row in _limits_of(where, part)]
        missing |= dict.fromkeys(body["missing"], "no answer")
    rows.sort(key=lambda row: row["used"] is None)
    return slice_page(call, rows, missing)


def _limits_of(where: str, part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the limits of a broker or proxy; 0 is no limit, what is used may be unknown."""
    limits, used = part["limits"], part["used"]
    names = [*limits, *(name for name in used if name not in limits)]
    return [{"name": name, "where": where, "limit": limits.get(name) or None, "used": used.get(name)} for name in names]


async def list_audit(call: ApiCall) -> Any:
    """Return a page of administrative acts, the newest first."""
    times = {name: call.values[name] for name in ("from_ms", "until_ms") if call.values[name] is not None}
    fields = {name: str(value) for name, value in times.items()}
    _, marks = decode_cursor(call.text("cursor"))
    try:
        begin = msgspec.json.decode(marks or "{}", type=dict[str, str])
    except (ValueError, msgspec.MsgspecError) as error:
        raise bad("cursor is not one of a page before") from error
    page = await acts_page(call.cluster, call.viewer, fields, call.number("limit"), begin)
    following = "" if page.last else encode_cursor("", msgspec.json.encode(page.marks).decode())
    return {"items": page.acts, "next": following, "total": None, "missing": page.missing}


OPERATIONS = (
    Operation(
        name="list_rules", method="GET", path="/access/rules", summary="List the access rules in force", tag=TAG,
        call=list_rules, query=PAGE, answer=Page[RuleRow],
    ),
    Operation(
        name="test_access", method="POST", path="/access/test", summary="Test what a client may do", tag=TAG,
        call=test_access, body=AccessQuestion, answer=AccessAnswer, reads=True,
    ),
    Operation(
        name="list_quotas", method="GET", path="/quotas", summary="List limits and what is used of them", tag=TAG,
        call=list_quotas, query=PAGE, answer=Page[Quota],
    ),
    Operation(
        name="list_audit", method="GET", path="/audit", summary="List administrative acts, the newest first", tag=TAG,
        call=list_audit, answer=Page[AuditRecord],
        query=(
            Parameter("from_ms", "Only acts from this time on, in ms since 1970.", INTEGER),
            Parameter("until_ms", "Only acts before this time, in ms since 1970.", INTEGER), LIMIT, CURSOR,
        ),
    ),
)  # fmt: skip
