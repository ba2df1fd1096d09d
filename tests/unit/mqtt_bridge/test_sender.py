"""The outbound direction against a scripted peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lightmq.cli.messages.mqtt_client import MqttLink, MqttTarget, PublishProperties
from lightmq.servers.all_in_one import AllInOne
from mqtt_bridge.config import BridgeConfig, RuleConfig
from tests.unit.mqtt_bridge.rig import client, connection, installation, reading, until
from tests.unit.mqtt_bridge.scripted_peer import PUBLISH, ScriptedPeer

RULE = RuleConfig(filter="a/#")
DEEP = RuleConfig(filter="deep/#", remote_prefix="x/" * 125)


@contextlib.asynccontextmanager
async def bridged(data: Path, scripted: ScriptedPeer, **settings: Any) -> AsyncIterator[tuple[AllInOne, Any]]:
    """An installation whose bridge sends to a scripted peer, and a client that publishes to it."""
    options = {"version": "5" if scripted.version == 5 else "3.1.1", **settings}
    bridge = BridgeConfig(name="here", connections=(connection(scripted.port, RULE, DEEP, **options),))
    async with installation(data, bridge) as app:
        await until(lambda: app._bridge is not None and app._bridge.ready)
        speaker = await client(app, "speaker")
        yield app, speaker
        speaker.close()


async def publish(speaker: Any, *payloads: bytes, topic: str = "a/1", qos: int = 1) -> None:
    for payload in payloads:
        await asyncio.to_thread(speaker.publish, topic, payload, qos)


async def test_the_offset_waits_for_the_acknowledgement(tmp_path: Path) -> None:
    """What the peer did not acknowledge is sent again after a restart of everything; what it did is not."""
    async with ScriptedPeer() as scripted:
        held: list[bytes] = []

        def keep_second(kind: int, body: bytes) -> bytes | None:
            if kind == PUBLISH and body.endswith(b"two"):
                held.append(body)
                return b""
            return None

        scripted.answer = keep_second
        async with bridged(tmp_path / "here", scripted, keep_alive_s=5) as (app, speaker):
            app._configuration.bridge.__dict__["stop_deadline_ms"] = 100
            await publish(speaker, b"one", b"two")
            await until(lambda: bool(held))
            await until(lambda: reading(app, "rocketmq_bridge_messages_total{peer,out}") == 1)
            assert reading(app, "rocketmq_bridge_in_flight_messages{peer}") == 1
        scripted.answer = lambda _kind, _body: None
        scripted.packets.clear()
        async with bridged(tmp_path / "here", scripted) as (app, speaker):
            await until(lambda: len(scripted.published()) == 1)
            await publish(speaker, b"three")
            await until(lambda: len(scripted.published()) == 2)
            assert [rest[-3:] for _topic, rest in scripted.published()] == [b"two", b"ree"]
            await until(lambda: reading(app, "rocketmq_bridge_lag_messages{peer}") == 0)


async def test_a_permanent_refusal_drops_and_a_temporary_one_is_tried_again(tmp_path: Path) -> None:
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted, refusals_max=2) as (app, speaker):
        dropped = "rocketmq_bridge_dropped_total{peer,out,peer_refused}"
        scripted.code = 0x87  # not authorized
        await publish(speaker, b"no")
        await until(lambda: reading(app, dropped) == 1)
        assert len(scripted.published()) == 1
        scripted.code = 0x97  # quota exceeded
        await publish(speaker, b"later")
        await until(lambda: reading(app, dropped) == 2)
        assert len(scripted.published()) == 3
        scripted.code = 0x10  # no matching subscribers: a success
        await publish(speaker, b"yes")
        await until(lambda: reading(app, "rocketmq_bridge_messages_total{peer,out}") == 1)


async def test_the_limits_of_the_peer(tmp_path: Path) -> None:
    """Its receive maximum, maximum QoS and retain are respected; what is too large is dropped and counted."""
    said = bytes.fromhex("210002240025002700000190")
    async with ScriptedPeer(connack_properties=said) as scripted, bridged(tmp_path / "h", scripted) as (app, speaker):
        await publish(speaker, b"x" * 400)
        await until(lambda: reading(app, "rocketmq_bridge_dropped_total{peer,out,too_large}") == 1)
        await asyncio.to_thread(speaker.publish, "a/1", b"small", 1, retain=True)
        await until(lambda: any(kind == PUBLISH for kind, _ in scripted.packets))
        [body] = [body for kind, body in scripted.packets if kind == PUBLISH]
        assert body[:5] == b"\0\3a/1"
        assert body[5] == len(body) - 6 - len(b"small")  # property length at once: QoS 0 has no packet id
    async with ScriptedPeer(connack_properties=bytes.fromhex("210002")) as scripted:
        scripted.answer = lambda kind, _body: b"" if kind == PUBLISH else None
        async with bridged(tmp_path / "h2", scripted) as (app, speaker):
            app._configuration.bridge.__dict__["stop_deadline_ms"] = 100
            await publish(speaker, *[b"%d" % number for number in range(5)])
            await until(lambda: len(scripted.published()) == 2)
            assert reading(app, "rocketmq_bridge_in_flight_messages{peer}") == 2


async def test_the_bridges_name_is_sent_and_its_own_messages_are_not(tmp_path: Path) -> None:
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted) as (_app, speaker):
        await publish(speaker, b"payload")
        await until(lambda: len(scripted.published()) == 1)
        [(topic, rest)] = scripted.published()
        assert topic == b"a/1"
        assert b"\x26\x00\x0elightmq-bridge\x00\x04here" in rest


async def test_what_is_not_sent_is_counted_with_its_reason(tmp_path: Path) -> None:
    """A message of another bridge, a topic too deep for its new prefix, a gap in the log; what follows them is sent."""
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted) as (app, speaker):
        other = await client(app, "lightmq-bridge-there-x-out")
        await publish(other, b"theirs")
        other.close()
        await publish(speaker, b"deep", topic="deep/1/2/3")
        await until(lambda: reading(app, "rocketmq_bridge_kept_back_total{peer,out,came_by_a_bridge}") == 1)
        await until(lambda: reading(app, "rocketmq_bridge_dropped_total{peer,out,bad_topic}") == 1)
        assert app._bridge is not None
        reader = app._bridge._directions[0]._work._reader  # type: ignore[attr-defined]
        real = reader.read

        async def with_a_gap(key: Any, cursor: Any) -> Any:
            reader.read = real
            records, following, _, _ = await real(key, cursor)
            return records, following, "retention", 3

        reader.read = with_a_gap
        await publish(speaker, b"behind")
        await until(lambda: reading(app, "rocketmq_bridge_skipped_total{peer,retention}") == 3)
        await until(lambda: len(scripted.published()) == 1)


async def test_what_expired_while_the_peer_was_down_is_dropped(tmp_path: Path) -> None:
    """Its publisher set the expiry."""
    async with ScriptedPeer() as scripted, bridged(tmp_path / "here", scripted) as (app, _speaker):
        assert app._bridge is not None
        sender = app._bridge._directions[0]._work
        now = sender._clock.now_ms  # type: ignore[attr-defined]
        later = type("Later", (), {"now_ms": lambda _self: now() + 10_000})()
        sender._clock = later  # type: ignore[attr-defined]
        target = MqttTarget(port=app.ports()["mqtt"], mqtt_version="5")
        link = MqttLink(target)
        await asyncio.to_thread(link.open)
        for seconds in (5, 60):
            link.client.publish(
                "a/1", b"%d" % seconds, 1, properties=PublishProperties(expiry=seconds).properties(is_v5=True)
            )
        await until(lambda: reading(app, "rocketmq_bridge_dropped_total{peer,out,expired}") == 1)
        await until(lambda: len(scripted.published()) == 1)
        assert b"\x02\x00\x00\x00\x32" in scripted.published()[0][1]  # 50 seconds are left
        await asyncio.to_thread(link.close)


async def test_qos_2_is_sent_once_per_handshake(tmp_path: Path) -> None:
    """The rule allows it, the message has it, and the exchange ends with PUBCOMP."""
    both = RuleConfig(filter="a/#", qos=2)
    async with installation(tmp_path / "peer") as peer:
        bridge = BridgeConfig(name="here", connections=(connection(peer, both, version="5"),))
        async with installation(tmp_path / "here", bridge) as here:
            await until(lambda: here._bridge is not None and here._bridge.ready)
            listener, speaker = await client(peer, "listener"), await client(here, "speaker")
            await asyncio.to_thread(listener.subscribe, ("a/#", 2))
            await publish(speaker, *[b"%d" % number for number in range(50)], qos=2)
            await until(lambda: len(listener.messages) == 50)
            assert [int(message.payload) for message in listener.messages] == list(range(50))
            assert {message.qos for message in listener.messages} == {2}
            await until(lambda: reading(here, "rocketmq_bridge_messages_total{peer,out}") == 50)
            listener.close()
            speaker.close()
