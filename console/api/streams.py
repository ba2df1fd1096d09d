"""`/trace` and `/spark`: one message followed from device to Spark and back, and the queries that report."""

from __future__ import annotations

from typing import Any

import msgspec

from console.api.operations import INTEGER, PAGE, ApiCall, Operation, Parameter
from console.api.pages import Page, slice_page
from console.api.problems import bad, not_found
from console.cluster import json_object
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode

TAG = "Trace and Spark"


class TraceStep(msgspec.Struct):
    """One step of a message's way."""

    where: str
    what: str
    time_ms: int | None = None
    detail: Any = None
    until_ms: int | None = None
    """Of a message that a group has by POP: until when no other consumer of the group gets it."""


class Trace(msgspec.Struct):
    """A message and its way."""

    message: dict[str, Any]
    steps: list[TraceStep]


class SparkQuery(msgspec.Struct):
    """A Spark query, as its listener last reported it."""

    id: str
    name: str = ""
    batch: int | None = None
    rows_per_s: float | None = None
    batch_ms: float | None = None
    lag_messages: int | None = None
    lag_s: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    last_error: str | None = None
    updated_ms: int = 0
    history: list[Any] = []


async def trace_message(call: ApiCall) -> Any:
    """Return the way of one message."""
    message_id, topic = call.text("message_id"), call.text("topic")
    if bool(message_id) == bool(topic):
        raise bad("name a message by its message_id, or by topic and offset")
    group, _, position = message_id.rpartition(":")
    fields = {"id": position} if message_id else {"topic": topic, "offset": str(call.values["offset"] or 0)}
    if topic and call.values["queue"] is not None:
        fields["queue"] = str(call.values["queue"])
    failure: LightMQError | None = None
    for broker in await call.cluster.masters():
        if group not in ("", broker):
            continue
        try:
            return {
                **json_object(await call.cluster.ask(broker, call.viewer, Code.TRACE_MESSAGE, fields)),
                "broker": broker,
            }
        except Refused as refused:
            if refused.code == ResponseCode.NO_PERMISSION:
                raise
            failure = refused
    raise failure or not_found("the controllers know no broker group")


async def list_spark(call: ApiCall) -> Any:
    """Return a page of Spark queries."""
    asked = await call.cluster.ask_all(call.viewer, Code.SPARK_QUERIES)
    rows = [{**row, "broker": broker} for broker, body in asked.objects() for row in body.get("queries", ())]
    return slice_page(call, rows, asked.missing)


OPERATIONS = (
    Operation(
        name="trace_message", method="GET", path="/trace", summary="Follow one message from device to Spark and back",
        tag=TAG, call=trace_message, answer=Trace,
        query=(
            Parameter("message_id", "The id of the message.", default=""),
            Parameter("topic", "Its topic, with `offset`.", default="", characters_max=65_535),
            Parameter("offset", "Its offset in the queue of its topic.", INTEGER),
            Parameter("queue", "The queue, for a RocketMQ topic.", INTEGER, maximum=65_535),
        ),
    ),
    Operation(
        name="list_spark", method="GET", path="/spark", summary="List Spark queries", tag=TAG, call=list_spark,
        query=PAGE, answer=Page[SparkQuery],
    ),
)  # fmt: skip
