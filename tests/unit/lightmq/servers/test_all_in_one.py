from __future__ import annotations

import asyncio
import dataclasses
import socket
from pathlib import Path

import aiohttp
import pytest

from grpc_proxy.config import GrpcConfig
from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne, merged
from lightmq.servers.serving import PortTaken
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig
from mqtt_proxy.config import ProxyConfig
from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import ClusterInfo, ControllerMetadata, decode_body, from_fields
from remoting.protocol.errors import LightMQError, LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.files import DirectoryLocked
from runtime.tls_config import ListenTlsConfig
from tests.support.certificates import HAVE_OPENSSL, Authority


def configuration(directory: Path) -> Configuration:
    return Configuration(
        up=UpConfig(data_directory=directory, remoting_port=0, admin_port=0),
        proxy=ProxyConfig(host="127.0.0.1", port=0),
    )


async def test_one_port_answers_as_name_server_and_as_broker(tmp_path: Path) -> None:
    everything = AllInOne(configuration(tmp_path))
    await everything.start()
    ports = everything.ports()
    connection = await connect("127.0.0.1", ports["remoting"])
    cluster = await connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = decode_body(cluster.body, ClusterInfo).broker_addr_table
    assert table["broker-a"].broker_addrs == {0: f"127.0.0.1:{ports['remoting']}"}
    assert (await connection.request(Command(RequestCode.TOPIC_LIST))).code == 0
    assert (await connection.request(Command(31_999))).code == 3
    await connection.close()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{ports['admin']}") as http:
        async with http.get("/readyz") as answer:
            assert answer.status == 200
        async with http.get("/status") as answer:
            assert (await answer.json())["ports"] == ports
    await everything.stop()


async def test_a_port_for_grpc_is_open_if_one_is_set(tmp_path: Path) -> None:
    wanted = configuration(tmp_path)
    up = dataclasses.replace(wanted.up, grpc_port=0)
    everything = AllInOne(dataclasses.replace(wanted, up=up, grpc=GrpcConfig(stop_deadline_ms=0)))
    await everything.start()
    port = everything.ports()["grpc"]
    again = AllInOne(dataclasses.replace(configuration(tmp_path / "b"), up=dataclasses.replace(
        up, data_directory=tmp_path / "b", grpc_port=port)))  # fmt: skip
    with pytest.raises(PortTaken, match="--grpc-port"):
        await again.start()
    await everything.stop()


async def test_its_controller_reports_the_open_address(tmp_path: Path) -> None:
    """Its port is the common one, whatever it is; the cluster commands and /status show it."""
    application = AllInOne(configuration(tmp_path))
    await application.start()
    port = application.ports()["remoting"]
    assert application.status()["controller"]["port"] == port
    connection = await connect("127.0.0.1", port)
    answer = await connection.request(Command(RequestCode.CONTROLLER_GET_METADATA_INFO))
    metadata = from_fields(answer.fields, ControllerMetadata)
    assert (metadata.controller_leader_address, metadata.peers) == (f"127.0.0.1:{port}", f"n1-127.0.0.1:{port}")
    await connection.close()
    await application.stop()


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    for expected in (0x00, 0x01):  # session present: no, then yes
        everything = AllInOne(configuration(tmp_path))
        await everything.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", everything.ports()["mqtt"])
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x3c\x00\x01c" + b"\x82\x06\x00\x01\x00\x01a\x01")
        assert await reader.readexactly(4) == bytes((0x20, 2, expected, 0))
        assert await reader.readexactly(5) == b"\x90\x03\x00\x01\x01"
        writer.close()
        await everything.stop()


async def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    first = AllInOne(configuration(tmp_path))
    await first.start()
    with pytest.raises(DirectoryLocked):
        await AllInOne(configuration(tmp_path)).start()
    await first.stop()


@pytest.mark.parametrize("part", ["mqtt", "remoting", "admin"])
async def test_a_port_lost_to_another_process_is_reported_and_all_is_stopped(tmp_path: Path, part: str) -> None:
    good = configuration(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        proxy = dataclasses.replace(good.proxy, port=port if part == "mqtt" else 0)
        up = dataclasses.replace(good.up, **({} if part == "mqtt" else {f"{part}_port": port}))
        with pytest.raises(PortTaken, match=f"--{part}-port 0"):
            await AllInOne(dataclasses.replace(good, up=up, proxy=proxy)).start()
    again = AllInOne(good)
    await again.start()
    await again.stop()


def test_a_code_with_two_answers_is_refused() -> None:
    with pytest.raises(LightMQError, match=r"\[5\]"):
        merged({5: lambda *_: None}, {5: lambda *_: None})


async def test_a_peer_that_is_down_is_named_but_does_not_make_it_unready(tmp_path: Path) -> None:
    peer = ConnectionConfig(name="cloud", host="127.0.0.1", port=1, rules=(RuleConfig(filter="#"),))
    bridge = BridgeConfig(name="here", connections=(peer,))
    everything = AllInOne(dataclasses.replace(configuration(tmp_path), bridge=bridge))
    await everything.start()
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{everything.ports()['admin']}") as http,
        http.get("/readyz") as answer,
    ):
        assert answer.status == 200
        assert "cloud (out)" in (await answer.json())["reasons"]["bridge"]
    await everything.stop()


@pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
async def test_proxies_that_the_broker_would_refuse_are_not_started(tmp_path: Path) -> None:
    """TLS enforced and several proxies not configured for it: reported at the start, and nothing stays open."""
    identity = Authority(tmp_path / "certificates").issue()
    wanted = configuration(tmp_path / "data")
    tls = ListenTlsConfig(mode="enforcing", certificate=identity.certificate, key=identity.key)
    listen = dataclasses.replace(wanted.proxy.listen, processes=2)
    everything = AllInOne(
        dataclasses.replace(
            wanted,
            broker=dataclasses.replace(wanted.broker, tls=tls),
            proxy=dataclasses.replace(wanted.proxy, listen=listen),
        )
    )
    with pytest.raises(LocalMisuse, match=r"proxy\.dial_tls\.enabled"):
        await everything.start()
