"""Staged attempts are counted, hidden, and dropped by upkeep when nobody commits them."""

from __future__ import annotations

from broker.sink.feature import SinkFeature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_an_attempt_that_is_not_committed_is_dropped(running) -> None:
    sink = running.broker.sink
    assert isinstance(sink, SinkFeature)
    fields = {"sink": "s", "batch": "0", "partition": "0", "attempt": "0"}
    staged = Command(RequestCode.STAGE, fields=fields, body=running.publish(b"a"))
    assert (await running.connect().request(staged)).code == 0
    assert (sink.status(), len(running.broker.topics.hidden)) == ({"staged_attempts": 1}, 1)
    sink.start()
    assert sink.maintain(running.clock.now_ms()) == {"stage_expired": 0}
    assert sink.maintain(running.clock.now_ms() + running.config.stage_expiry_s * 1_000) == {"stage_expired": 1}
    assert (sink.status(), running.broker.topics.hidden) == ({"staged_attempts": 0}, set())
