"""A publish that may not be: refused in its acknowledgement at level 5, the end of the connection at level 4."""

from __future__ import annotations

from mqtt_proxy.mqtt import packets
from tests.unit.mqtt_proxy.bridge.rig import publish, running, settle


async def test_refused_one_by_one_at_level_5() -> None:
    """The others of the read are stored and acknowledged, in order; a QoS 0 one is only counted."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("c", level=5)
        client.received()
        sent = [
            publish("a", b"", 1, 1),
            publish("secret", b"", 1, 2),
            publish("secret", b"", 0),
            publish("a", b"", 2, 3),
        ]
        client.send(*sent)
        await settle()
        assert client.received() == [packets.Puback(1), packets.Puback(2, 0x87), packets.Pubrec(3)]
        assert client.closed is None
        assert rig.count("publishes_refused_total{not_authorized}") == 2
        assert rig.count("messages_in_total") == 2


async def test_the_end_at_level_4() -> None:
    """3.1.1 has no other word for it; nothing of that read is stored."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("c")
        client.received()
        client.send(publish("a", b"", 1, 1), publish("secret", b"", 1, 2))
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("not_authorized")
        assert client.received() == []
        assert rig.count("messages_in_total") == 0
