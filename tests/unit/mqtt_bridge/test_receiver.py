"""The inbound direction against a scripted peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.servers.all_in_one import AllInOne
from mqtt_bridge.config import BridgeConfig, RuleConfig
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.mqtt_bridge.rig import client, connection, installation, reading, until
from tests.unit.mqtt_bridge.scripted_peer import DISCONNECT, PUBACK, SUBSCRIBE, ScriptedPeer, packet, publish_packet

RULE = RuleConfig(direction="in", filter="x/#", local_prefix="peer/")


@contextlib.asynccontextmanager
async def bridged(data: Path, scripted: ScriptedPeer, **settings: Any) -> AsyncIterator[AllInOne]:
    """An installation whose bridge subscribes at a scripted peer."""
    options = {"version": "5" if scripted.version == 5 else "3.1.1", **settings}
    bridge = BridgeConfig(name="here", connections=(connection(scripted.port, RULE, **options),))
    async with installation(data, bridge) as app:
        await until(lambda: any(kind == SUBSCRIBE for kind, _ in scripted.packets))
        yield app


def acknowledged(scripted: ScriptedPeer) -> list[int]:
    return [int.from_bytes(body[:2], "big") for kind, body in scripted.packets if kind == PUBACK]


async def test_stored_then_acknowledged_in_order(tmp_path: Path) -> None:
    async with ScriptedPeer(version=4) as scripted, bridged(tmp_path / "here", scripted) as app:
        listener = await client(app, "listener", "peer/#")
        scripted.send(*[publish_packet(b"x/y", number, b"%d" % number, None) for number in (9, 4, 7)])
        await until(lambda: len(acknowledged(scripted)) == 3)
        assert acknowledged(scripted) == [9, 4, 7]
        await until(lambda: len(listener.messages) == 3)
        assert [message.payload for message in listener.messages] == [b"9", b"4", b"7"]
        assert reading(app, "rocketmq_bridge_messages_total{peer,in}") == 3
        assert reading(app, "rocketmq_bridge_unconfirmed_bytes{peer}") == 0
        listener.close()


async def test_what_is_not_stored_is_counted_and_acknowledged(tmp_path: Path) -> None:
    """A returning message of its own, and one of a rule that was removed."""
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted) as app:
        ours = b"\x26\x00\x0elightmq-bridge\x00\x04here"
        scripted.send(publish_packet(b"x/y", 1, b"", ours), publish_packet(b"old/rule", 2, b""))
        await until(lambda: acknowledged(scripted) == [1, 2])
        assert reading(app, "rocketmq_bridge_kept_back_total{peer,in,was_here}") == 1
        assert reading(app, "rocketmq_bridge_dropped_total{peer,in,no_rule}") == 1
        assert reading(app, "rocketmq_bridge_messages_total{peer,in}") == 0


async def test_invalid_messages_are_dropped(tmp_path: Path) -> None:
    """A topic with one level too many after its prefix, properties that do not fit a record."""
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted) as app:
        deep = b"x" + b"/" * 127
        huge = b"\x26\x00\x01k\xff\xff" + b"v" * 0xFFFF
        scripted.send(publish_packet(deep, 1, b"z"), publish_packet(b"x/y", 2, b"z", huge))
        await until(lambda: acknowledged(scripted) == [1, 2])
        assert reading(app, "rocketmq_bridge_dropped_total{peer,in,bad_topic}") == 1
        assert reading(app, "rocketmq_bridge_dropped_total{peer,in,too_large}") == 1


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_waits_for_what_is_being_stored(tmp_path: Path, in_time: bool) -> None:
    """And not for ever: what is not stored by then stays with the peer."""
    async with ScriptedPeer(version=4) as scripted, bridged(tmp_path / "here", scripted) as app:
        assert app._bridge is not None
        way = app._bridge._directions[0]
        real, asked, release = app._bridge._uplink.line.request, asyncio.Event(), asyncio.Event()

        async def request(command: Command, timeout_ms: int = 30_000) -> Command:
            if command.code == RequestCode.APPEND_MANY:
                asked.set()
                await release.wait()
            return await real(command, timeout_ms)

        app._bridge._uplink.line.request = request  # type: ignore[method-assign]
        scripted.send(publish_packet(b"x/y", 5, b"z", None))
        await asked.wait()
        stopping = asyncio.create_task(way.stop(20 if in_time else 0.05))
        if in_time:
            await asyncio.sleep(0)
            release.set()
        await stopping
        await until(lambda: scripted.packets[-1][0] == DISCONNECT)
        assert acknowledged(scripted) == ([5] if in_time else [])


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SERVICE_NOT_AVAILABLE])
async def test_refusals_of_the_broker(tmp_path: Path, code: int) -> None:
    """A message it will never accept is dropped alone; a broker that cannot write costs only the connection."""
    async with ScriptedPeer(version=4) as scripted, bridged(tmp_path / "here", scripted) as app:
        assert app._bridge is not None
        line, refusing = app._bridge._uplink.line, True
        real = line.request

        async def request(command: Command, timeout_ms: int = 0) -> Command:
            if refusing and command.code == 9001 and b"bad" in command.body:
                raise Refused(code, "not this one")
            return await real(command, timeout_ms or 30_000)

        line.request = request  # type: ignore[method-assign]
        scripted.send(*[publish_packet(b"x/y", number, text, None) for number, text in ((1, b"ok"), (2, b"bad"))])
        if code == ResponseCode.MESSAGE_ILLEGAL:
            await until(lambda: acknowledged(scripted) == [1, 2])
            assert reading(app, "rocketmq_bridge_dropped_total{peer,in,refused}") == 1
            assert reading(app, "rocketmq_bridge_messages_total{peer,in}") == 1
        else:
            await until(lambda: len(scripted.writers) > 1)
            assert 2 not in acknowledged(scripted)
            refusing = False
            await until(lambda: sum(kind == SUBSCRIBE for kind, _ in scripted.packets) > 1)
            scripted.send(publish_packet(b"x/y", 2, b"bad", None))
            await until(lambda: 2 in acknowledged(scripted))


async def test_a_refused_subscription_is_the_reason_for_not_being_ready(tmp_path: Path) -> None:
    async with ScriptedPeer(version=4) as scripted:
        scripted.answer = lambda kind, body: packet(0x90, body[:2] + b"\x80") if kind == SUBSCRIBE else None
        async with bridged(tmp_path / "here", scripted) as app:
            assert app._bridge is not None
            bridge = app._bridge
            await until(lambda: "refused the subscription to 'x/#'" in bridge.reason())


async def test_3_1_1_does_not_ask_again_for_retained_messages(tmp_path: Path) -> None:
    """A session that is present has its subscriptions."""
    async with ScriptedPeer(version=4) as scripted, bridged(tmp_path / "here", scripted):
        scripted.answer = lambda kind, _body: b"\x20\x02\x01\x00" if kind == 1 else None
        scripted.writers[-1].close()
        await until(lambda: len(scripted.writers) == 2)
        scripted.send(publish_packet(b"x/y", 3, b"", None))
        await until(lambda: acknowledged(scripted) == [3])
        assert sum(kind == SUBSCRIBE for kind, _ in scripted.packets) == 1


async def test_what_waited_in_the_session_does_not_block_the_subscription(tmp_path: Path) -> None:
    """More than may be unconfirmed comes before the answer to SUBSCRIBE."""
    async with ScriptedPeer(version=4) as scripted:
        waited = [publish_packet(b"x/y", number, b"z" * 100, None) for number in range(1, 1_001)]

        def session(kind: int, _body: bytes) -> bytes | None:
            return b"\x20\x02\x01\x00" + b"".join(waited) if kind == 1 else None

        scripted.answer = session
        async with bridged(tmp_path / "here", scripted, unconfirmed_bytes_max=65_536) as app:
            await until(lambda: len(acknowledged(scripted)) == 1_000)
            assert app._bridge is not None
            assert app._bridge.ready
