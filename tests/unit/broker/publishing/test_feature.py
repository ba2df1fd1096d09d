"""Publishing answers APPEND_MANY, and reports every expiry to the retained messages."""

from __future__ import annotations

from broker.publishing.feature import PublishingFeature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_a_request_goes_through_the_one_appender(running) -> None:
    publishing = running.broker.publishing
    assert isinstance(publishing, PublishingFeature)
    assert set(publishing.handlers()) == {RequestCode.APPEND_MANY}
    before = running.broker.tools.metrics.messages_in.value
    assert (await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a")))).code == 0
    assert running.broker.tools.metrics.messages_in.value == before + 1
