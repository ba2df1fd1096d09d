"""Lite topics and MQTT topics of the same name are one queue, over the sockets of a real server process."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.client.connection import dial
from tests.processes.rig import Server
from tests.processes.test_request_reply import Client5
from tests.unit.broker.lite.client import PARENT, ack, make_group, make_parent, pop, send, subscribe

pytestmark = pytest.mark.processes


async def test_mqtt_clients_and_consumers_of_lite_topics_talk_to_each_other(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        connection = await dial(f"127.0.0.1:{server.ports['remoting']}")
        assert (await make_parent(connection)).code == (await make_group(connection)).code == 0
        device = Client5(server, "device")
        await device.subscribe(f"{PARENT}/#")
        assert await subscribe(connection, "s-7") == 0
        await device.publish(f"{PARENT}/s-7", b"how warm?")
        (asked,) = await pop(connection, pollTime=10_000)
        assert (asked.body, asked.lite_topic) == (b"how warm?", "s-7")
        assert await ack(connection, asked) == 0
        assert await send(connection, "s-7", b"21.5", more="UserProperty\x01kept\x02") == 0
        assert [(await device.message()).payload for _ in range(2)] == [b"how warm?", b"21.5"]
        (answered,) = await pop(connection, pollTime=10_000)
        assert answered.body == b"21.5"
        assert answered.properties["UserProperty"] == "kept"
        device.close()
    finally:
        server.kill_if_running()
