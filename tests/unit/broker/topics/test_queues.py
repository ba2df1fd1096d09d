"""Which store queue a client means."""

from __future__ import annotations

import pytest

from broker.topics.queues import ClientQueues, is_light
from broker.topics.topics import TopicSettings
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode


async def test_parent_and_light_queues(running) -> None:
    broker = running.broker
    queues = ClientQueues(running.store, broker.topics.table)
    broker.topics.table.put(TopicSettings(name="t", permission=2))
    assert queues.find("t", 3) == broker.topics.table.queue_ids("t")[3]
    assert is_light("%LMQ%x")
    assert queues.find("%LMQ%x", 0) is None
    queue_id = running.store.queues.open(b"%LMQ%x")
    assert queues.find("%LMQ%x", 0) == queue_id
    queues.require_readable("%LMQ%x")
    for call, code in (
        (lambda: queues.find("t", 4), ResponseCode.INVALID_PARAMETER),
        (lambda: queues.find("none", 0), ResponseCode.TOPIC_NOT_EXIST),
        (lambda: queues.require_readable("t"), ResponseCode.NO_PERMISSION),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code
