"""`/retained`, `/timers`, `/dead-letters`: what is kept for subscribers, waits for its time, or was given up."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from console.api.operations import PAGE, SEARCH, TEXT, ApiCall, Operation, Parameter
from console.api.pages import Page, page_over
from console.api.problems import bad, not_found
from console.cluster import json_object
from console.tail import message_id
from console.viewers import MONITOR
from remoting.protocol.bodies.recall_handle import RecallHandle, decode_handle
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code

TAG = "Messages"
TOPIC = Parameter("topic", "The MQTT topic, percent-encoded.", TEXT, required=True, characters_max=65_535)
HANDLE = Parameter("handle", "The handle of the waiting message.", TEXT, required=True, characters_max=8_192)
DEAD_LETTER = Parameter("id", "The id of the dead letter.", TEXT, required=True, characters_max=2_048)
LETTER_BYTES_SHOWN = 4_096
"""How much of a dead letter's body brokers show."""
DELAY_MS_MAX = 400 * 86_400_000


class RetainedRow(msgspec.Struct):
    """A retained message."""

    topic: str
    bytes: int = 0
    qos: int = 0
    stored_ms: int = 0
    expires_ms: int | None = None
    position: int = 0
    broker: str = ""


class Timer(msgspec.Struct):
    """A message that waits for its time."""

    handle: str
    topic: str
    due_ms: int
    bytes: int = 0
    broker: str = ""


class Reschedule(msgspec.Struct, forbid_unknown_fields=True):
    """The new time of a waiting message, from now on."""

    delay_ms: int


class RescheduledTimer(msgspec.Struct):
    """What became of it: it waits under a new handle, or was delivered."""

    handle: str
    delivered: bool


class DeadLetter(msgspec.Struct):
    """A message that a group gave up; `payload` is missing where its reader may not consume the topic."""

    id: str
    broker: str
    group: str
    topic: str
    """The topic that it was sent to."""
    queue: int
    offset: int
    time_ms: int = 0
    """When it was given up."""
    tries: int = 0
    """How often it was delivered again before."""
    message_id: str = ""
    producer_id: str = ""
    """The id that its producer knows."""
    keys: str = ""
    tags: str = ""
    payload_bytes: int = 0
    payload: str | None = None
    encoding: str = ""
    """`text`, or `base64` where the payload is no text."""
    truncated: bool = False
    properties: dict[str, str] = {}
    damaged: bool = False
    """Whether it cannot be read any more."""


class Done(msgspec.Struct):
    """That an act on one message was carried out, and on which."""

    done: bool
    target: str


class SentAgain(msgspec.Struct):
    """Where a dead letter is now: its group's next deliveries come from there."""

    done: bool
    target: str
    topic: str
    offset: int


async def list_retained(call: ApiCall) -> Any:
    """Return a page of retained messages."""
    fields = {"filter": call.text("filter") or "#"}
    if call.text("search"):
        fields["contains"] = call.text("search")
    return await page_over(call, Code.RETAINED_LIST, "retained", fields)


async def clear_retained(call: ApiCall) -> Any:
    """Clear the retained message of a topic."""
    topic = call.text("topic")
    asked = await call.cluster.ask_all(call.viewer, Code.RETAINED_CLEAR, {"topic": topic})
    if not any(body.get("cleared") for _, body in asked.objects()):
        raise not_found(f"{topic!r} has no retained message")
    return {"done": True, "target": topic}


async def list_timers(call: ApiCall) -> Any:
    """Return a page of waiting messages, those due next first."""
    page = await page_over(call, Code.TIMERS, "timers", {})
    page["items"] = [{**row, "bytes": row.get("body_bytes", 0)} for row in page["items"]]
    return page


async def recall_timer(call: ApiCall) -> Any:
    """Recall a waiting message: it will not be delivered."""
    handle, given = _handle(call), call.text("handle")
    fields = {"producerGroup": "lightmq-console", "topic": handle.topic, "recallHandle": given}
    await call.cluster.ask(handle.broker, call.viewer, Code.RECALL_MESSAGE, fields)
    return {"done": True, "target": given}


async def reschedule_timer(call: ApiCall) -> Any:
    """Give a waiting message another time."""
    handle, delay_ms = _handle(call), call.body.delay_ms
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise bad(f"delay_ms is from 0 to {DELAY_MS_MAX}")
    fields = {"topic": handle.topic, "recallHandle": call.text("handle"), "delayMs": str(delay_ms)}
    answer = await call.cluster.ask(handle.broker, call.viewer, Code.RESCHEDULE_MESSAGE, fields)
    moved = answer.fields.get("recallHandle", "")
    return {"handle": moved, "delivered": not moved}


async def list_dead_letters(call: ApiCall) -> Any:
    """Return a page of dead letters, by group, the newest first."""
    fields = {"group": call.text("group"), "contains": call.text("search")}
    asked = {name: value for name, value in fields.items() if value}
    if call.viewer.role == MONITOR and call.viewer.key is None:
        asked["bodies"] = "false"
    page = await page_over(call, Code.DEAD_LETTERS, "dead_letters", asked)
    page["items"] = [_letter_row(row) for row in page["items"]]
    return page


async def resend_dead_letter(call: ApiCall) -> Any:
    """Give the message to its group again."""
    broker, group, queue, offset = _letter(call.text("id"))
    fields = {"group": group, "queue": str(queue), "offset": str(offset)}
    if broker not in await call.cluster.masters():
        raise not_found(f"there is no broker group {broker!r}")
    answer = json_object(await call.cluster.ask(broker, call.viewer, Code.RESEND_DEAD_LETTER, fields))
    return {"done": True, "target": call.text("id"), "topic": answer["topic"], "offset": answer["offset"]}


def _letter_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a dead letter as the API shows it."""
    names = ("broker", "group", "topic", "queue", "offset", "tries", "keys", "tags", "damaged")
    found = {name: row[name] for name in names if name in row}
    found |= {"id": _letter_id(row), "time_ms": row.get("stored_ms", 0), "properties": row.get("properties", {})}
    if "position" in row:
        found["message_id"] = message_id(row["broker"], row["position"])
        found["producer_id"] = row["id"]
        found["payload_bytes"] = row["bytes"]
    if row.get("body") is not None:
        found |= {"payload": row["body"], "encoding": row["encoding"]}
        found["truncated"] = row["bytes"] > LETTER_BYTES_SHOWN
    return found


def _handle(call: ApiCall) -> RecallHandle:
    try:
        return decode_handle(call.text("handle"))
    except (RemoteViolation, ValueError) as error:
        raise bad("handle is not one of a waiting message") from error


def _letter_id(row: dict[str, Any]) -> str:
    """Return the id of a dead letter: where it is."""
    place = [row["broker"], row["group"], int(row["queue"]), int(row["offset"])]
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _letter(text: str) -> tuple[str, str, int, int]:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=tuple[str, str, int, int])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise bad("id is not one of a dead letter") from error


OPERATIONS = (
    Operation(
        name="list_retained", method="GET", path="/retained", summary="List retained messages", tag=TAG,
        call=list_retained, answer=Page[RetainedRow],
        query=(Parameter("filter", "Only topics of this filter.", default="#", characters_max=65_535), SEARCH, *PAGE),
    ),
    Operation(
        name="clear_retained", method="DELETE", path="/retained/{topic}", summary="Clear a retained message", tag=TAG,
        call=clear_retained, in_path=(TOPIC,), answer=Done,
    ),
    Operation(
        name="list_timers", method="GET", path="/timers", summary="List delayed messages, those due next first",
        tag=TAG, call=list_timers, query=PAGE, answer=Page[Timer],
    ),
    Operation(
        name="recall_timer", method="DELETE", path="/timers/{handle}", summary="Recall a delayed message", tag=TAG,
        call=recall_timer, in_path=(HANDLE,), answer=Done,
    ),
    Operation(
        name="reschedule_timer", method="POST", path="/timers/{handle}/reschedule", tag=TAG, call=reschedule_timer,
        summary="Give a delayed message another time", in_path=(HANDLE,), body=Reschedule, answer=RescheduledTimer,
    ),
    Operation(
        name="list_dead_letters", method="GET", path="/dead-letters", summary="List dead letters", tag=TAG,
        call=list_dead_letters, query=(Parameter("group", "Only of this group.", default=""), SEARCH, *PAGE),
        answer=Page[DeadLetter],
    ),
    Operation(
        name="resend_dead_letter", method="POST", path="/dead-letters/{id}/resend", tag=TAG, call=resend_dead_letter,
        summary="Give a dead letter to its group again", in_path=(DEAD_LETTER,), answer=SentAgain,
    ),
)  # fmt: skip
