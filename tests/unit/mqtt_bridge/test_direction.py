"""One direction kept up: attempts, their pauses, their reasons, the password's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mqtt_bridge.config import RuleConfig
from mqtt_bridge.direction import Direction, first_line
from mqtt_bridge.metrics import BridgeMetrics
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from remoting.protocol.errors import LightMQError
from runtime.clock import SystemClock
from runtime.metrics import Registry
from tests.unit.mqtt_bridge.rig import connection, until
from tests.unit.mqtt_bridge.scripted_peer import DISCONNECT, ScriptedPeer


class Work:
    """Counts what is asked of it."""

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
