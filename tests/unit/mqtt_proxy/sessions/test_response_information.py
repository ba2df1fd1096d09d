"""Response Information: for clients that ask, where it is configured, and never another client's."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.session.events import ConnectRequested
from mqtt_proxy.sessions.connecting import response_information
from tests.unit.mqtt_proxy.rig import running


@pytest.mark.parametrize(
    ("prefix", "client_id", "asked", "told"),
    [
        ("re/", "dev", True, "re/dev/"),
        ("re/", "dev", False, None),
        ("", "dev", True, None),
        ("re/", "a/b", True, None),
        ("re/", "+", True, None),
        ("re/", "#", True, None),
    ],
)
def test_response_information_of_an_id(prefix: str, client_id: str, asked: bool, told: str | None) -> None:
    """An id that is more than one level of a topic would reach into the topics of others."""
    event = ConnectRequested(client_id, True, 0, None, None, None, 5, False, request_response_information=asked)
    assert response_information(prefix, event) == told


async def test_in_the_connack() -> None:
    """[MQTT-3.1.2-28] only when it was asked for."""
    async with running(response_topic_prefix="re/") as rig:
        asking = await rig.client("asking", level=5, properties={props.REQUEST_RESPONSE_INFORMATION: 1})
        silent = await rig.client("silent", level=5)
        for wire, told in ((asking, b"re/asking/"), (silent, None)):
            (connack,) = wire.received()
            assert isinstance(connack, packets.Connack)
            assert (connack.properties or {}).get(props.RESPONSE_INFORMATION) == told
