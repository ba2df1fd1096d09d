"""Whole bridges between installations of this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mqtt_bridge.app import BridgeApp, Direction, first_line
from mqtt_bridge.config import BridgeConfig, RuleConfig
from mqtt_bridge.message import BridgeMetrics
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from remoting.client.uplink import MasterConnection
from remoting.protocol.errors import LightMQError
from runtime.clock import SystemClock
from runtime.metrics import Registry
from tests.unit.mqtt_bridge.rig import client, connection, installation, reading, until
from tests.unit.mqtt_bridge.scripted_peer import DISCONNECT, ScriptedPeer

OUT = RuleConfig(filter="#", local_prefix="plant/", remote_prefix="site/7/")
IN = RuleConfig(direction="in", filter="#", local_prefix="cloud/", remote_prefix="cmd/7/")


@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_both_directions(tmp_path: Path, version: str) -> None:
    """What is published here arrives there under its other name, and the other way round."""
    async with installation(tmp_path / "peer") as peer:
        bridge = BridgeConfig(name="here", connections=(connection(peer, OUT, IN, version=version),))
        async with installation(tmp_path / "here", bridge) as here:
            await until(lambda: here._bridge is not None and here._bridge.ready)
            there, local = await client(peer, "there", "site/#"), await client(here, "local", "cloud/#")
            await asyncio.to_thread(local.publish, "plant/1/temp", b"21")
            await until(lambda: there.latest == {"site/7/1/temp": b"21"})
            await asyncio.to_thread(there.publish, "cmd/7/fan", b"on")
            await until(lambda: local.latest == {"cloud/fan": b"on"})
            assert here._bridge is not None
            assert here._bridge.reason() == ""
            assert [way["up"] for way in here._bridge.status()["ways"]] == [True, True]
            for direction in ("in", "out"):
                name = f"rocketmq_bridge_messages_total{{peer,{direction}}}"
                await until(lambda name=name: reading(here, name) == 1)  # the acknowledgement counts
                assert reading(here, f"rocketmq_bridge_connected{{peer,{direction}}}") == 1
            there.close()
            local.close()


async def test_a_bridge_without_connections_does_nothing() -> None:
    app = BridgeApp(BridgeConfig(), clock=SystemClock(), registry=Registry())
    await app.start()
    assert app.status() == {"ways": []}
    assert app.reason() == ""
    await app.stop()


async def test_the_broker_is_found_by_address_or_by_controller(tmp_path: Path) -> None:
    """As a process of its own the bridge dials."""
    async with installation(tmp_path / "peer") as peer, installation(tmp_path / "here") as here:
        address = f"127.0.0.1:{here.ports()['remoting']}"
        for where in ({"broker": address}, {"controllers": (address,)}):
            config = BridgeConfig(name="here", connections=(connection(peer, OUT),), **where)
            app = BridgeApp(config, clock=SystemClock(), registry=Registry())
            assert not app.ready
            await app.start()
            await until(lambda app=app: app.ready)
            await app.stop()


async def test_the_reason_for_not_being_ready(tmp_path: Path) -> None:
    """A peer that is down, and a broker that is down."""
    async with installation(tmp_path / "here") as here:
        config = BridgeConfig(
            name="here", broker=f"127.0.0.1:{here.ports()['remoting']}", connections=(connection(1, OUT),)
        )
        app = BridgeApp(config, clock=SystemClock(), registry=Registry())
        await app.start()
        await until(lambda: "cannot connect to 127.0.0.1:1" in app.reason())
        assert not app.ready
        await app.stop()
    app = BridgeApp(config, clock=SystemClock(), registry=Registry())
    await app.start()
    assert app.reason() == "our broker cannot be reached"
    await app.stop()


async def test_without_a_broker_of_its_own_it_follows_the_master() -> None:
    """The one the controllers name; while they cannot be reached that is the reason for not being ready."""
    connections = (connection(1, OUT),)
    config = BridgeConfig(name="here", controllers=("127.0.0.1:1",), connections=connections)
    app = BridgeApp(config, clock=SystemClock(), registry=Registry())
    await app.start()
    assert isinstance(app._uplink.connection, MasterConnection)
    assert app.reason() == "our broker cannot be reached"
    await app.stop()


class Work:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = 0

    async def prepare(self) -> None:
        self.calls.append("prepare")
        if self.fails:
            self.fails -= 1
            raise LightMQError("our broker is away")

    async def poll(self) -> None:
        self.calls.append("look")
        raise LightMQError("away")

    def listen(self, peer: BridgeClient) -> None:
        self.calls.append("listen")

    async def begin(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:
        self.calls.append("begin")

    async def run(self, peer: BridgeClient) -> None:
        self.calls.append("run")
        raise PeerLostError(await peer.until_ended())

    async def settle(self, deadline_s: float) -> None:
        self.calls.append("settle")
        raise LightMQError("not all")


def way(port: int, work: Work, registry: Registry, **settings: Any) -> Direction:
    config = connection(port, RuleConfig(filter="#"), **settings)
    return Direction("out", config, "here", work, SystemClock(), BridgeMetrics(registry))


async def test_it_comes_back_and_leaves_in_order() -> None:
    async with ScriptedPeer(version=4) as scripted:
        work, registry = Work(), Registry()
        work.fails = 1
        one = way(scripted.port, work, registry)
        await one.stop(1)  # before it began there is nothing to stop
        one.start()
        await until(lambda: one.up)
        assert work.calls == ["prepare", "look", "prepare", "listen", "begin", "run"]
        scripted.writers[-1].close()
        await until(lambda: one.reason.startswith("the connection ended"))
        await until(lambda: one.up and one.reason == "")
        picture = registry.values()
        assert picture["rocketmq_bridge_connects_total{peer,out}"] == 2
        assert picture["rocketmq_bridge_disconnects_total{peer,out}"] == 2
        await one.stop(1)
        assert work.calls[-1] == "settle"
        assert not one.up
        await until(lambda: scripted.packets[-1][0] == DISCONNECT)


async def test_the_password_is_read_at_each_attempt(tmp_path: Path) -> None:
    file = tmp_path / "password"
    async with ScriptedPeer(version=4) as scripted:
        one = way(scripted.port, Work(), Registry(), username="u", password_file=file)
        one.start()
        await until(lambda: "cannot read the password file" in one.reason)
        file.write_text("sésame\nsecond line\n")
        await until(lambda: one.up)
        assert scripted.packets[0][1].endswith(b"\0\x01u\0\x07s\xc3\xa9same")
        await one.stop(1)


def test_the_first_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"a b\r\nc")
    assert first_line(file) == "a b"
    file.write_bytes(b"\xff")
    with pytest.raises(PeerLostError, match="cannot read"):
        first_line(file)
