"""Pages of lists over several brokers, one broker after another.

A cursor is the name of the broker and that broker's own mark, opaque to clients. Items keep the order of each broker;
with one broker group, which serves all of MQTT, that is the order of the whole list.
Invariant: a page has at most `limit` items; a broker that does not answer is named in `missing` and passed over, so a
list with a dead broker still ends. A cursor that was made up is refused, or gives a page, nothing else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from console.api.operations import ApiCall
from console.api.problems import bad
from console.cluster import json_object
from remoting.protocol.errors import LightMQError

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    """A page of a list; `next` is the cursor of the following one, empty on the last."""

    items: list[T]
    next: str
    total: int | None = None
    """How many there are, if it is known."""
    missing: dict[str, str] = {}
    """Broker group -> why its part is missing."""


def encode_cursor(broker: str, after: str) -> str:
    """Return the cursor of a place in a broker's list."""
    return base64.urlsafe_b64encode(msgspec.json.encode([broker, after])).decode().rstrip("=")


def decode_cursor(text: str) -> tuple[str, str]:
    """Return broker and place; two empty texts for the beginning. Raises ApiProblem."""
    if not text:
        return "", ""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        broker, after = msgspec.json.decode(raw, type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise bad("cursor is not one of a page before") from error
    return broker, after


async def page_over(
    call: ApiCall,
    code: int,
    member: str,
    fields: Mapping[str, str],
    *,
    key: str = "",
    after_field: str = "after",
    rows: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Return a page of what the brokers list under `member`, asked with `limit` and `after`.

    `key`: what an item is named by, where the answer has no `next` but `more`; `after_field`: of the request; `rows`:
    what one member is on the page, where it is not one item; the broker's `limit` counts these.
    """
    limit = call.number("limit")
    begin, after = decode_cursor(call.text("cursor"))
    names = [name for name in await call.cluster.masters() if name >= begin]
    items: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    totals: list[int | None] = []
    failure: LightMQError | None = None
    for name in names:
        asked = {**fields, "limit": str(limit - len(items))}
        if after and name == begin:
            asked[after_field] = after
        try:
            answer = json_object(await call.cluster.ask(name, call.viewer, code, asked))
        except LightMQError as error:
            missing[name], failure = str(error), error
            continue
        found = answer.get(member, [])
        if rows is not None:
            found = [row for one in found for row in rows(one)]
        found = found[: limit - len(items)]
        items += [{**item, "broker": name} for item in found]
        totals.append(answer.get("matching", answer.get("total")))
        missing |= {str(each): "no answer" for each in answer.get("missing", ())}
        mark = _mark(answer, found, key)
        if mark:
            return _page(items, encode_cursor(name, mark), totals, missing, whole=False)
        following = [other for other in names if other > name]
        if len(items) == limit and following:
            return _page(items, encode_cursor(following[0], ""), totals, missing, whole=False)
    if failure is not None and not totals:
        raise failure
    return _page(items, "", totals, missing, whole=not begin)


def _mark(answer: Mapping[str, Any], found: list[dict[str, Any]], key: str) -> str:
    """Return where the next page of the same broker begins; empty when there is none."""
    if "next" in answer and answer.get("more", True):
        return str(answer["next"] or "")
    return str(found[-1][key]) if key and found and answer.get("more") else ""


def _page(
    items: list[dict[str, Any]], cursor: str, totals: list[int | None], missing: dict[str, str], *, whole: bool
) -> dict[str, Any]:
    known = [total for total in totals if total is not None]
    complete = len(known) == len(totals) and (whole or len(totals) == 1)
    return {"items": items, "next": cursor, "total": sum(known) if complete and known else None, "missing": missing}


def slice_page(call: ApiCall, items: list[Any], missing: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a page of a list that is at hand; its cursor is the number of the first item."""
    _, after = decode_cursor(call.text("cursor"))
    if after and not (after.isascii() and after.isdigit() and len(after) <= 9):
        raise bad("cursor is not one of a page before")
    begin, limit = int(after or 0), call.number("limit")
    cursor = encode_cursor("", str(begin + limit)) if begin + limit < len(items) else ""
    return {
        "items": items[begin : begin + limit], "next": cursor, "total": len(items), "missing": dict(missing or {}),
    }  # fmt: skip
