"""RocketMQ's requests are one feature, and its upkeep samples the rates that RocketMQ's tools show."""

from __future__ import annotations

import msgspec

from broker.rocketmq.feature import RocketmqFeature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_upkeep_samples_the_rates(running) -> None:
    (rocketmq,) = [feature for feature in running.broker.features if isinstance(feature, RocketmqFeature)]
    assert {RequestCode.SEND_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.GET_CONSUME_STATS} <= set(
        rocketmq.handlers()
    )
    connection = running.connect()
    assert rocketmq.maintain(running.clock.now_ms()) == {}
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(*[b"a"] * 20)))
    running.clock.advance_ms(2_000)
    assert rocketmq.maintain(running.clock.now_ms()) == {}
    reply = await connection.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert msgspec.json.decode(reply.body)["table"]["putTps"].split()[0] == "10.0"
