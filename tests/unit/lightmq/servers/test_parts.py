from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import aiohttp
import pytest

from broker.config import BrokerConfig
from controller.config import ControllerConfig
from grpc_proxy.config import GrpcConfig
from lightmq.servers.parts import bridge_part, broker_part, controller_part, grpc_part, proxy_part
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig
from mqtt_proxy.config import ProxyConfig


async def page(port: int, name: str) -> tuple[int, dict[str, object]]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/{name}") as answer:
        return answer.status, await answer.json()


async def test_three_parts_meet_over_sockets(tmp_path: Path) -> None:
    controller = controller_part(ControllerConfig(port=0, admin_port=0, data_directory=tmp_path / "controller"))
    await controller.start()
    address = f"127.0.0.1:{controller.ports()['remoting']}"
    broker = broker_part(BrokerConfig(port=0, admin_port=0, data_directory=tmp_path / "broker", controllers=(address,)))
    await broker.start()
    proxy = proxy_part(ProxyConfig(host="127.0.0.1", port=0, admin_port=0, controllers=(address,)))
    await proxy.start()
    assert set(proxy.ports()) == {"mqtt", "admin"}
    grpc = grpc_part(GrpcConfig(port=0, admin_port=0, controllers=(address,), stop_deadline_ms=0))
    await grpc.start()
    assert set(grpc.ports()) == {"grpc", "admin"}
    for part in (controller, broker, proxy, grpc):
        status, content = await page(part.ports()["admin"], "readyz")
        assert (status, content["ready"]) == (200, True)
        assert (await page(part.ports()["admin"], "status"))[0] == 200
    for part in (grpc, proxy, broker, controller):
        await part.stop()


async def test_an_admin_port_in_use_stops_the_application_again(tmp_path: Path) -> None:
    config = ControllerConfig(port=0, admin_port=0, data_directory=tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        part = controller_part(dataclasses.replace(config, admin_port=taken.getsockname()[1]))
        with pytest.raises(OSError):
            await part.start()
    again = controller_part(config)
    await again.start()
    await again.stop()


async def test_a_bridge_is_unready_while_its_peer_is_down() -> None:
    peer = ConnectionConfig(name="cloud", host="127.0.0.1", port=1, rules=(RuleConfig(filter="#"),))
    bridge = bridge_part(BridgeConfig(name="here", admin_port=0, broker="127.0.0.1:1", connections=(peer,)))
    await bridge.start()
    assert set(bridge.ports()) == {"admin"}
    status, content = await page(bridge.ports()["admin"], "readyz")
    assert (status, content["reasons"]) == (503, {"bridge": "our broker cannot be reached"})
    assert (await page(bridge.ports()["admin"], "status"))[0] == 200
    await bridge.stop()
