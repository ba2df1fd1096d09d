"""The whole proxy on a real socket with a broker in memory: start, serve, stop without losing anything."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from mqtt_proxy.access.credentials import make_hash
from mqtt_proxy.app import ProxyApp
from mqtt_proxy.config import AccessConfig, ProxyConfig
from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.listening.connection import MqttConnection
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.session.session import Session
from mqtt_proxy.sessions.client import Client
from mqtt_proxy.subscriptions import Subscriptions
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, encode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.server import RemotingServer
from runtime.clock import SystemClock
from runtime.metrics import Registry
from tests.unit.mqtt_proxy.fake_broker import FakeBroker
from tests.unit.mqtt_proxy.rig import publish


def proxy(registry: Registry, **settings: object) -> ProxyConfig:
    """A configuration for tests: loopback, any free port."""
    return ProxyConfig(host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]


async def test_a_client_is_served_and_its_will_is_published_at_the_stop() -> None:
    """In-process broker; the stop waits until the will and the session's end were answered."""
    broker, registry = FakeBroker(), Registry()
    app = ProxyApp(proxy(registry), clock=SystemClock(), registry=registry, connection=await broker.connect())
    port = await app.start()
    assert app.ready
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    will = packets.Will(b"w", b"gone", 1, True)
    writer.write(encode(packets.Connect("a", False, 0, None, None, will)) + encode(publish("t", b"x", 1, 9)))
    assert await reader.readexactly(8) == bytes((0x20, 2, 0, 0, 0x40, 2, 0, 9))
    assert registry.values()["rocketmq_mqtt_sessions"] == 1
    await app.stop()
    assert await reader.read() == b""
    writer.close()
    assert b"w" in broker.retained
    assert broker.sessions["a"].owner is None
    assert not app.ready


async def test_a_broker_over_tcp() -> None:
    """The configuration names it."""
    broker, registry = FakeBroker(), Registry()
    server = RemotingServer(broker.handle)
    broker_port = await server.start("127.0.0.1", 0)
    app = ProxyApp(proxy(registry, broker=f"127.0.0.1:{broker_port}"), clock=SystemClock(), registry=registry)
    port = await app.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode(packets.Connect("a", True, 0)))
    assert await reader.readexactly(4) == bytes((0x20, 2, 0, 0))
    writer.close()
    await app.stop()
    await server.stop()


async def test_it_connects_to_the_master_named_by_the_controllers() -> None:
    """And to the new one when a broker answers that it is no longer the master."""
    broker, registry = FakeBroker(), Registry()
    server, former = RemotingServer(broker.handle), RemotingServer(not_the_master)
    ports = [await server.start("127.0.0.1", 0), await former.start("127.0.0.1", 0)]
    cluster = {"g": BrokerData("C", "g", {0: f"127.0.0.1:{ports[1]}"})}
    controller = RemotingServer(
        lambda peer, command: command.reply(
            *(() if command.code == RequestCode.GET_BROKER_CLUSTER_INFO else (3, "what?")),
            body=encode_body(ClusterInfo(cluster, {"C": ["g"]})),
        )
    )
    controllers = (f"127.0.0.1:{await controller.start('127.0.0.1', 0)}",)
    app = ProxyApp(
        proxy(registry, controllers=controllers, reconnect_delay_ms_max=20), clock=SystemClock(), registry=registry
    )
    port = await app.start()
    cluster["g"].broker_addrs[0] = f"127.0.0.1:{ports[0]}"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.wait_for(until_open(app), 30)
    writer.write(encode(packets.Connect("a", True, 0)))
    assert await reader.readexactly(4) == bytes((0x20, 2, 0, 0))
    writer.close()
    await app.stop()
    for one in (server, former, controller):
        await one.stop()


def not_the_master(_peer: object, command: Command) -> Command:
    """A replica that does not know the master."""
    return command.reply(ResponseCode.NOT_MASTER, "a replica")


async def until_open(app: ProxyApp) -> None:
    """Send requests until the broker behind the link answers."""
    while True:
        try:
            await app._link.request(RequestCode.CLUSTER_STATUS, b"")
        except LightMQError:
            await asyncio.sleep(0.005)
        else:
            return


async def test_a_port_in_use_is_reported() -> None:
    """OSError, and the link is closed again."""
    broker, registry = FakeBroker(), Registry()
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as other:
        config = ProxyConfig(host="127.0.0.1", port=other.sockets[0].getsockname()[1])
        app = ProxyApp(config, clock=SystemClock(), registry=registry, connection=await broker.connect())
        with pytest.raises(OSError, match="in use"):
            await app.start()
        assert not app.ready


async def test_a_plain_listener_is_on_loopback_until_an_address_is_set(tmp_path: Path) -> None:
    """The socket itself determines what other machines can reach; a password file opens no plain port to them."""
    users = tmp_path / "users"
    users.write_text("")
    users.chmod(0o600)
    for settings, address in (
        ({}, "127.0.0.1"),
        ({"password_file": users}, "127.0.0.1"),
        ({"password_file": users, "host": "127.0.0.2"}, "127.0.0.2"),
    ):
        broker, registry = FakeBroker(), Registry()
        config = ProxyConfig(port=0, **settings)
        app = ProxyApp(config, clock=SystemClock(), registry=registry, connection=await broker.connect())
        await app.start()
        assert app._listener._servers[0].sockets[0].getsockname()[0] == address
        await app.stop()


async def test_the_right_password_is_accepted_during_a_storm_of_wrong_ones(tmp_path: Path) -> None:
    """Most of the storm has left when its turn comes: it costs no hashes, and no client waits behind it."""
    users = tmp_path / "users"
    users.write_text(f"ann:{make_hash('right')}\nbob:{make_hash('other')}\n")
    users.chmod(0o600)
    broker, registry = FakeBroker(), Registry()
    config = proxy(
        registry, password_file=users, access=AccessConfig(password_checks_waiting_max=64), connect_timeout_ms=120_000
    )  # a busy machine needs more than 10 s
    app = ProxyApp(config, clock=SystemClock(), registry=registry, connection=await broker.connect())
    port = await app.start()
    check = app._gate._authenticator._methods[0]._check
    arrived, verify = threading.Event(), check._verify

    def verified(waiting: Any) -> bool:
        assert arrived.wait(60)  # no hash is computed before all have come, however slowly
        return verify(waiting)

    check._verify = verified
    wrong = encode(packets.Connect("storm", True, 0, "bob", b"wrong"))
    storm = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
    for _, writer in storm:
        writer.write(wrong)
    counted = "rocketmq_mqtt_authentications_total{%s,password}"
    undecided = "rocketmq_mqtt_authentications_undecided_total{%s,password}"
    while registry.values().get(undecided % "busy", 0) < 100:
        await asyncio.sleep(0.01)
    for _, writer in storm[10:]:
        writer.transport.abort()
    arrived.set()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode(packets.Connect("right", True, 0, "ann", b"right")))
    assert await asyncio.wait_for(reader.readexactly(4), 10) == bytes((0x20, 2, 0, 0))
    values = registry.values

    def answered() -> float:
        found = values()
        return found.get(counted % "denied", 0) + sum(found.get(undecided % one, 0) for one in ("busy", "left"))

    while answered() < 200:
        await asyncio.sleep(0.01)
    assert values()[counted % "accepted"] == 1
    assert values()[undecided % "left"] > 0
    assert check.hashes < 60
    assert values()["rocketmq_mqtt_connects_refused_total{busy}"] == values()[undecided % "busy"]
    answers = {await stayed.read() for stayed, _ in storm[:10]}
    assert answers <= {bytes((0x20, 2, 0, 4)), bytes((0x20, 2, 0, 3))}
    writer.close()
    for _, writer in storm[:10]:
        writer.close()
    await app.stop()


async def test_ended_connections_are_freed_without_the_collector() -> None:
    """Full collections are rare in a server: connections that wait for one are a leak as long as clients reconnect."""
    broker, registry = FakeBroker(), Registry()
    app = ProxyApp(proxy(registry), clock=SystemClock(), registry=registry, connection=await broker.connect())
    port = await app.start()
    kinds = (MqttConnection, Client, Session, Delivery, Subscriptions)
    gc.collect()
    before = {kind: live(kind) for kind in kinds}
    gc.disable()
    try:
        for number in range(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            subscribe = packets.Subscribe(1, [(f"fleet/{number}", 1)])
            writer.write(encode(packets.Connect(f"c{number}", number % 2 == 0, 0)) + encode(subscribe))
            assert len(await reader.readexactly(9)) == 9
            if number % 3:
                writer.write(encode(packets.Disconnect()))
            writer.close()
        async with asyncio.timeout(10):
            while app._listener.connections or app._services.tasks or app._services.owners:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(10):  # the last callbacks of the loop still reference their arguments
            while {kind: live(kind) for kind in kinds} != before:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
        await app.stop()


def live(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())
