"""`/topics`, `/messages`, `/queues`: the tree of MQTT topics, one topic, publishing, and the queues of a topic."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from console.api.operations import INTEGER, PAGE, SEARCH, TEXT, ApiCall, Operation, Parameter
from console.api.pages import Page, page_over
from console.api.problems import bad, not_found
from console.publishing import PAYLOAD_BYTES_MAX, NewPublish, publish
from console.tail import FilterTail, shown
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.records.topics import validate_filter, validate_topic_name

TAG = "Topics"
TOPIC = Parameter("topic", "The MQTT topic, percent-encoded.", TEXT, required=True, characters_max=65_535)
BODY_BYTES_MAX = 6 * 1_048_576
HISTORY_MAX = 200


class TopicNode(msgspec.Struct):
    """One level of the topic tree."""

    level: str
    """Its name below the parent: of a search this may be several levels."""
    topic: str
    exists: bool = True
    """Whether there are messages of exactly this topic."""
    messages: int = 0
    last_ms: int | None = None
    """When its newest message was stored; null where there is none."""
    retained: bool = False
    children: bool = False


class MessageRow(msgspec.Struct):
    """A stored message; `payload` is text, or base64 as `encoding` says."""

    topic: str
    payload: str
    encoding: str
    payload_bytes: int
    truncated: bool
    qos: int
    retain: bool
    time_ms: int
    offset: int
    message_id: str
    broker: str


class TopicDetail(msgspec.Struct):
    """One topic with its newest messages."""

    topic: str
    messages: list[MessageRow]


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to publish; either `payload` or `payload_base64`."""

    topic: str
    payload: str = ""
    payload_base64: str = ""
    qos: int = 1
    retain: bool = False
    properties: dict[str, str] = {}
    """MQTT 5 user properties."""
    content_type: str = ""
    response_topic: str = ""
    correlation_data: str = ""
    expiry_s: int | None = None
    delay_ms: int = 0
    """Deliver it so much later."""


class Published(msgspec.Struct):
    """A message that is stored as durably as any other."""

    acknowledged: bool
    broker: str
    queue_id: int
    offset: int
    message_id: str


class Queue(msgspec.Struct):
    """One queue of a topic on one broker; offsets from `min` to before `max` are there."""

    topic: str
    broker: str
    queue: int
    min: int
    max: int
    messages: int


async def list_topics(call: ApiCall) -> Any:
    """Return a page of one level of the topic tree, or of the levels at any depth whose name has a text in it."""
    fields = {"parent": call.text("parent")}
    if call.text("search"):
        fields["contains"] = call.text("search")
    return await page_over(call, Code.TOPIC_TREE, "children", fields)


async def get_topic(call: ApiCall) -> Any:
    """Return the newest messages of one topic or filter."""
    topic = call.text("topic")
    wrong = validate_filter(topic)
    if wrong is not None:
        raise bad(f"topic {wrong}")
    found = await FilterTail(call.cluster, call.viewer, topic).begin(call.number("history"))
    return {"topic": topic, "messages": [shown(broker, message) for broker, message in reversed(found)]}


async def publish_message(call: ApiCall) -> Any:
    """Publish a message; answered when it is stored."""
    given: NewMessage = call.body
    wrong = validate_topic_name(given.topic)
    if wrong is not None:
        raise bad(f"topic {wrong}")
    if given.qos not in (0, 1, 2) or given.delay_ms < 0 or (given.expiry_s or 0) < 0:
        raise bad("qos is 0, 1 or 2; delay_ms and expiry_s are not negative")
    if given.payload and given.payload_base64:
        raise bad("give either payload or payload_base64")
    payload = given.payload.encode()
    if given.payload_base64:
        try:
            payload = base64.b64decode(given.payload_base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise bad("payload_base64 is not base64") from error
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise bad(f"a payload may have {PAYLOAD_BYTES_MAX} bytes here")
    message = NewPublish(
        topic=given.topic.encode(), payload=payload, qos=given.qos, retain=given.retain, delay_ms=given.delay_ms,
        expiry_s=given.expiry_s, user=tuple((k.encode(), v.encode()) for k, v in given.properties.items()),
        content_type=given.content_type.encode(), response_topic=given.response_topic.encode(),
        correlation_data=given.correlation_data.encode(),
    )  # fmt: skip
    now_ms = call.figures.now_ms()
    return await publish(call.cluster, call.viewer, message, now_ms)


async def list_queues(call: ApiCall) -> Any:
    """Return a page of the queues of all topics, or of one."""
    fields = {"contains": call.text("search"), "topic": call.text("topic")}
    asked = {name: value for name, value in fields.items() if value}
    page = await page_over(call, Code.TOPIC_LIST, "topics", asked, rows=_queues_of)
    if call.text("topic") and not page["items"] and not call.text("cursor") and not page["missing"]:
        raise not_found(f"there is no topic {call.text('topic')!r}")
    return page


def _queues_of(topic: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic["topic"], "queue": queue["queue"], "min": queue["min"], "max": queue["max"],
            "messages": queue["max"] - queue["min"],
        }
        for queue in topic["queues"]
    ]  # fmt: skip


OPERATIONS = (
    Operation(
        name="list_topics", method="GET", path="/topics", tag=TAG,
        summary="List one level of the tree of MQTT topics, or search their whole names",
        call=list_topics, answer=Page[TopicNode],
        query=(
            Parameter("parent", "The levels above, as `plant/7`; empty: the first level.", default="",
                      characters_max=65_535),
            Parameter("search", "Part of the whole name: the highest levels that have it, at any depth. A search "
                      "goes on where it left off: a page may have few items or none, and a `next`.", default=""), *PAGE,
        ),
    ),
    Operation(
        name="get_topic", method="GET", path="/topics/{topic}", summary="Show the newest messages of a topic or filter",
        tag=TAG, call=get_topic, in_path=(TOPIC,), answer=TopicDetail,
        query=(Parameter("history", "How many messages.", INTEGER, default=20, minimum=0, maximum=HISTORY_MAX),),
    ),
    Operation(
        name="publish_message", method="POST", path="/messages", summary="Publish a message", tag=TAG,
        call=publish_message, body=NewMessage, answer=Published, body_bytes_max=BODY_BYTES_MAX,
    ),
    Operation(
        name="list_queues", method="GET", path="/queues", summary="List queues of RocketMQ topics", tag=TAG,
        call=list_queues, answer=Page[Queue], query=(Parameter("topic", "Only this topic.", default=""), SEARCH, *PAGE),
    ),
)  # fmt: skip
