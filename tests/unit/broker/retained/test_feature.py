"""A retained message that is published with an expiry is counted, recorded and removed when it expires."""

from __future__ import annotations

from broker.retained.feature import RetainedFeature
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.properties import EXPIRY
from remoting.protocol.records.record import FLAG_RETAIN


async def test_a_message_is_removed_when_its_expiry_is_over(running) -> None:
    retained = running.broker.retained
    assert isinstance(retained, RetainedFeature)
    entry = encode_mqtt_image(b"a", b"x", 1 | FLAG_RETAIN, running.clock.now_ms(), b"c", properties=[(EXPIRY, b"5")])
    await running.connect().request(Command(RequestCode.APPEND_MANY, body=entry))
    assert retained.status() == {"retained_messages": 1}
    assert retained.maintain(running.clock.now_ms()) == {"retained_expired": 0}
    running.clock.advance_ms(5_000)
    assert retained.maintain(running.clock.now_ms()) == {"retained_expired": 1}
    assert retained.status() == {"retained_messages": 0}
