"""Delayed messages are counted for the metrics page, and are delivered only between start and stop."""

from __future__ import annotations

from broker.delayed.feature import DelayedFeature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_what_waits_is_on_the_metrics_page(running) -> None:
    delayed = running.broker.delayed
    assert isinstance(delayed, DelayedFeature)
    fields = {"producerGroup": "g", "topic": "t", "queueId": "0", "defaultTopicQueueNums": "1"}
    fields |= {"properties": "DELAY\x013\x02", "bornTimestamp": "1"}
    await running.connect().request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"later"))
    values = running.registry.values()
    assert (values["rocketmq_delayed_messages"], values["rocketmq_delayed_delivered_messages_total"]) == (1, 0)
    assert not running.broker.topics.hidden.isdisjoint(delayed.messages.buckets.queues)
    delayed.start()
    delayed.stop()
    assert delayed.maintain(running.clock.now_ms()) == delayed.status() == {}
