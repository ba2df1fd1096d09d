"""Requests of an operator to a broker, for the tests of this folder."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from remoting.client.connection import dial
from remoting.protocol.frames.commands import Command
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import StreamOffset, to_json


def ask(port: int, code: int, **fields: str) -> Any:
    """The JSON of an answer, None for an empty one, or (code, remark) of a refusal."""

    async def asked() -> Command:
        connection = await dial(f"127.0.0.1:{port}")
        try:
            return await connection.request(Command(code, fields=fields))
        finally:
            await connection.close()

    answer = asyncio.run(asked())
    return (answer.code, answer.remark) if answer.code else json.loads(bytes(answer.body) or b"null")


QUERY, RUN = uuid.UUID(int=1), uuid.UUID(int=2)
NOW = "2026-01-01T00:00:00.000Z"


def query_started() -> QueryStartedEvent:
    """As Spark reports the start of a query."""
    return QueryStartedEvent(QUERY, RUN, "alarms", NOW, set())


def query_terminated(error: str) -> QueryTerminatedEvent:
    """As Spark reports a failed query."""
    return QueryTerminatedEvent(QUERY, RUN, error, None)


def query_progress(batch: int) -> QueryProgressEvent:
    """As Spark reports a batch that has read queue 0 of topic t up to its offset."""
    offsets = json.dumps(to_json(StreamOffset({QueueKey("t", "broker-a", 0): batch})))
    source = {
        "description": "rocketmq", "startOffset": "{}", "endOffset": offsets, "latestOffset": offsets,
        "numInputRows": 7, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {},
    }  # fmt: skip
    progress = {
        "id": str(QUERY), "runId": str(RUN), "name": "alarms", "timestamp": NOW, "batchId": batch, "batchDuration": 40,
        "durationMs": {"triggerExecution": 50}, "eventTime": {}, "stateOperators": [], "sources": [source],
        "sink": {"description": "s", "numOutputRows": 7, "metrics": {}}, "numInputRows": 7, "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0, "observedMetrics": {},
    }  # fmt: skip
    return QueryProgressEvent(StreamingQueryProgress.fromJson(progress))
