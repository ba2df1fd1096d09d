"""Offsets of durable sessions reach the broker in batches and never run ahead of the client."""

from __future__ import annotations

import asyncio

from mqtt_proxy.history import HistoryRun
from mqtt_proxy.history_steps import StepsAtMaster
from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.bodies.session_body import FINISHED, HISTORY_BIT
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_acknowledged_offsets_are_committed_in_one_request() -> None:
    """For all sessions at the interval; the lowest unacknowledged offset of each."""
    async with running(offsets_commit_interval_ms=1) as rig:
        clients = [await rig.subscriber(name, ("t", 1), clean=False) for name in ("a", "b")]
        rig.offsets.stop()
        sender = await rig.client("p")
        sender.send(*[publish("t", b"%d" % number, packet_id=number) for number in (1, 2, 3)])
        await settle()
        rig.broker.codes.clear()
        clients[0].send(packets.Puback(1), packets.Puback(3))
        clients[1].send(packets.Puback(1), packets.Puback(2), packets.Puback(3))
        rig.offsets.commit()
        await settle()
        assert rig.broker.codes.count(RequestCode.APPEND_OFFSETS) == 1
        queue_id = clients[0].handler._delivery.sources[0].queue_id
        assert rig.broker.sessions["a"].offsets[queue_id] == 1
        assert rig.broker.sessions["b"].offsets[queue_id] == 3


async def test_a_refused_commit_is_repeated() -> None:
    """The offsets are still marked."""
    async with running(offsets_commit_interval_ms=1) as rig:
        client = await rig.subscriber("a", ("t", 1), clean=False)
        sender = await rig.client("p")
        sender.send(publish("t", b"1"))
        await settle()
        rig.broker.refuse[RequestCode.APPEND_OFFSETS] = [Refused(14, "disk full")]
        client.send(packets.Puback(1))
        queue_id = client.handler._delivery.sources[0].queue_id
        while rig.broker.sessions["a"].offsets[queue_id] != 1:
            await asyncio.sleep(0.001)
        assert rig.broker.refuse[RequestCode.APPEND_OFFSETS] == []


async def test_clean_sessions_commit_nothing() -> None:
    """They end with their connection."""
    async with running(offsets_commit_interval_ms=1) as rig:
        client = await rig.subscriber("a", ("t", 1))
        sender = await rig.client("p")
        sender.send(publish("t", b"1"))
        await settle()
        client.send(packets.Puback(1))
        rig.offsets.commit()
        await settle()
        assert RequestCode.APPEND_OFFSETS not in rig.broker.codes


async def test_a_position_in_history_is_committed_until_its_end() -> None:
    """Like an offset, under the queue's id with a bit set; the end of the history is committed once."""
    async with running(offsets_commit_interval_ms=1) as rig:
        client = await rig.subscriber("a", ("t/+", 1), clean=False)
        rig.offsets.stop()
        delivery = client.handler._delivery
        (source,) = delivery.sources
        run = source.history = HistoryRun(StepsAtMaster(rig.link), "t/+", source.queue_id, 640, delivery.wake)
        run.ended = True
        run.unacked[700] = None
        for expected in (700, FINISHED):
            rig.offsets.mark(delivery)
            rig.offsets.commit()
            await settle()
            assert rig.broker.sessions["a"].offsets[source.queue_id | HISTORY_BIT] == expected
            assert source.history is run
            run.acknowledge(700)
        rig.offsets.mark(delivery)
        rig.offsets.commit()
        assert source.history is None
