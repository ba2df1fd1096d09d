"""Which store queue a client means."""

from __future__ import annotations

import pytest

from broker.api.queues import find_queue, is_light, require_readable
from broker.meta.topics import TopicConfig
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import Refused


async def test_parent_and_light_queues(running) -> None:
    broker = running.broker
    broker.topics.put(TopicConfig(name="t", permission=2))
    assert find_queue(broker, "t", 3) == broker.topics.queue_ids("t")[3]
    assert is_light("%LMQ%x")
    assert find_queue(broker, "%LMQ%x", 0) is None
    queue_id = running.store.open_queue(b"%LMQ%x")
    assert find_queue(broker, "%LMQ%x", 0) == queue_id
    require_readable(broker, "%LMQ%x")
    for call, code in (
        (lambda: find_queue(broker, "t", 4), ResponseCode.INVALID_PARAMETER),
        (lambda: find_queue(broker, "none", 0), ResponseCode.TOPIC_NOT_EXIST),
        (lambda: require_readable(broker, "t"), ResponseCode.NO_PERMISSION),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code
