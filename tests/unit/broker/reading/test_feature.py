"""Reading has the handlers of raw records, and counts the requests that wait."""

from __future__ import annotations

import asyncio

from broker.reading.feature import ReadingFeature
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, encode_bounds_request
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_a_request_that_waits_is_counted_until_a_topic_comes(running) -> None:
    reading = running.broker.reading
    assert isinstance(reading, ReadingFeature)
    assert {RequestCode.MULTI_PULL, RequestCode.FILTERED_PULL, RequestCode.QUEUE_BOUNDS} <= set(reading.handlers())
    connection, request = running.connect(), QueueBoundsRequest(filter="t/#", known={}, wait_ms=20_000)
    asking = asyncio.ensure_future(
        connection.request(Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(request)))
    )
    while not reading.status()["long_polls"]:
        await asyncio.sleep(0)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"t/1")))
    assert (await asyncio.wait_for(asking, 10)).code == 0
    assert reading.status() == {"long_polls": 0}
