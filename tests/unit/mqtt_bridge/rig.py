"""Installations in this process, clients of them, and bridges between them for the tests of the shells."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_bridge.config import BridgeConfig, ConnectionConfig, RuleConfig
from mqtt_proxy.config import ProxyConfig
from tests.processes.rig import Client

DEADLINE_S = 20.0


@contextlib.asynccontextmanager
async def installation(data: Path, bridge: BridgeConfig | None = None, mqtt_port: int = 0) -> AsyncIterator[AllInOne]:
    """`lightmq up` on this loop, on free ports."""
    up = UpConfig(data_directory=data, remoting_port=0, admin_port=0)
    app = AllInOne(Configuration(up=up, proxy=ProxyConfig(port=mqtt_port), bridge=bridge or BridgeConfig()))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


def connection(peer: AllInOne | int, *rules: RuleConfig, **settings: Any) -> ConnectionConfig:
    """A connection to an installation of this process, quick to reconnect."""
    port = peer if isinstance(peer, int) else peer.ports()["mqtt"]
    quick: dict[str, Any] = {
        "reconnect_delay_ms_min": 20,
        "reconnect_delay_ms_max": 200,
        "commit_interval_ms": 20,
        "version": "3.1.1",
    }
    return ConnectionConfig(**{"name": "peer", "host": "127.0.0.1", "port": port, "rules": rules, **quick, **settings})


class Spoken:
    """What `Client` needs to know of a server."""

    def __init__(self, app: AllInOne) -> None:
        self.port = app.ports()["mqtt"]


async def client(app: AllInOne, name: str, *filters: str) -> Client:
    """A client in threads of its own, subscribed."""
    made: Client = await asyncio.to_thread(Client, Spoken(app), name)
    if filters:
        await asyncio.to_thread(made.subscribe, *[(one, 1) for one in filters])
    return made


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something on this loop or on a client's thread."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def reading(app: AllInOne, name: str) -> float:
    """One metric."""
    return app._registry.values().get(name, 0.0)
