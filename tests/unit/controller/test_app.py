"""A controller started and stopped, over a real socket and without one."""

from __future__ import annotations

import asyncio

import pytest

from controller.app import ControllerApp
from controller.config import ControllerConfig
from controller.consensus.wire import COMMANDS_KNOWN
from remoting import inprocess
from remoting.client.admin import AsyncAdmin
from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import RegisterBrokerBody, TopicConfig, TopicConfigTable, encode_body
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router
from runtime.files import DirectoryLocked
from runtime.format_file import WrongFormat
from runtime.metrics import Registry


def config(tmp_path, **options):
    return ControllerConfig(port=0, data_directory=tmp_path / "controller", liveness_scan_ms=50, **options)


def registration():
    fields = {"clusterName": "C", "brokerName": "b", "brokerId": "0", "brokerAddr": "127.0.0.1:10911"}
    table = TopicConfigTable({"t": TopicConfig("t")})
    return Command(103, fields=fields, body=encode_body(RegisterBrokerBody(table)))


async def test_broker_and_client_meet_over_sockets(tmp_path):
    registry = Registry()
    app = ControllerApp(config(tmp_path, broker_lost_grace_ms=0), registry=registry)
    await app.start()
    assert app.ready()
    broker = await connect("127.0.0.1", app.port)
    assert (await broker.request(registration())).code == 0
    asking = await connect("127.0.0.1", app.port)
    client = AsyncAdmin(asking)
    assert (await client.cluster()).broker_addr_table["b"].master() == "127.0.0.1:10911"
    assert (await client.route("t")).queue_datas[0].read_queue_nums == 4
    assert app.status()["brokers"] == {"b": [0]}
    assert registry.values()["rocketmq_controller_brokers"] == 1
    await broker.close()
    while (await client.cluster()).absent() != ["b"]:
        await asyncio.sleep(0.01)
    await asking.close()
    await app.stop()
    assert not app.ready()


async def test_a_directory_of_a_newer_release_is_refused(tmp_path):
    """It may have taken decisions that this one would leave out; it is not damaged, and nothing in it is changed."""
    directory = tmp_path / "controller"
    directory.mkdir()
    text = f"lightmq-controller 1 records {COMMANDS_KNOWN + 1}\n"
    (directory / "FORMAT").write_text(text)
    with pytest.raises(WrongFormat, match="a newer release has opened this directory"):
        await ControllerApp(config(tmp_path)).start()
    assert [path.name for path in directory.iterdir() if path.name != "lock"] == ["FORMAT"]
    assert (directory / "FORMAT").read_text() == text


async def test_it_remembers_across_a_restart(tmp_path):
    first = ControllerApp(config(tmp_path))
    await first.start()
    await inprocess.connect(Router(first.handlers)).request(registration())
    await first.stop()
    second = ControllerApp(config(tmp_path), listen=False)
    await second.start()
    assert second.port == 0
    assert await AsyncAdmin(inprocess.connect(Router(second.handlers))).topic_names() == ["t"]
    await second.stop()


async def test_two_controllers_cannot_share_a_directory_or_a_port(tmp_path):
    app = ControllerApp(config(tmp_path))
    await app.start()
    with pytest.raises(DirectoryLocked):
        await ControllerApp(config(tmp_path)).start()
    other = ControllerApp(ControllerConfig(port=app.port, data_directory=tmp_path / "other"))
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{app.port}"):
        await other.start()
    again = ControllerApp(ControllerConfig(port=0, data_directory=tmp_path / "other"))
    await again.start()
    await again.stop()
    await app.stop()


async def test_a_tick_that_fails_is_not_the_last(tmp_path, monkeypatch, capsys):
    app = ControllerApp(config(tmp_path), listen=False)
    await app.start()
    calls = []
    monkeypatch.setattr(app.name_server, "tick", lambda: calls.append(1) or 1 // 0)
    while len(calls) < 2:
        await asyncio.sleep(0.01)
    assert app.ready()
    await app.stop()
