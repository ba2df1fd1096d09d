"""Consumer groups answer their requests and forget who is silent."""

from __future__ import annotations

from broker.groups.feature import ConsumerGroups
from remoting.protocol.frames.codes import RequestCode


async def test_a_feature_has_handlers_and_upkeep(running) -> None:
    groups = running.broker.groups
    assert isinstance(groups, ConsumerGroups)
    assert {RequestCode.HEART_BEAT, RequestCode.QUERY_CONSUMER_OFFSET} <= set(groups.handlers())
    assert groups.maintain(running.clock.now_ms()) == {"client_silent": 0}
