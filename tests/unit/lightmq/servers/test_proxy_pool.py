"""The pool of proxy processes, with a stand-in for the proxy: its arguments, and when it is restarted."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightmq.configuration import LogsConfig, load_configuration
from lightmq.servers import proxy_pool
from lightmq.servers.proxy_pool import ProxyPool, ProxyPoolMetrics, document
from mqtt_proxy.config import ListenConfig, ProxyConfig, QuotaConfig
from mqtt_proxy.listening.listener import PortUnavailable
from remoting.protocol.errors import LightMQError
from runtime.metrics import Registry

STAND_IN = """
import json, os, signal, sys, tomllib
with open(sys.argv[sys.argv.index("--config") + 1], "rb") as stream:
    config = tomllib.load(stream)["proxy"]
with open(os.environ["STAND_IN_LOG"], "a") as log:
    log.write(f"start {config['port']} {config['listen']['reuse_port']} {config['listen']['processes']}\\n")
if os.environ.get("STAND_IN_FAILS"):
    sys.exit(3)
def hangup(*_):
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write("reload\\n")
signal.signal(signal.SIGHUP, hangup)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(json.dumps({"mqtt": config["port"], "admin": 5}), flush=True)
while sys.stdin.read(1):
    pass
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pool starts the stand-in, which records its events."""
    written = tmp_path / "log"
    written.write_text("")
    monkeypatch.setattr(proxy_pool, "COMMAND", (sys.executable, "-c", STAND_IN))
    monkeypatch.setenv("STAND_IN_LOG", str(written))
    return written


def pool(count: int, **listen: Any) -> ProxyPool:
    config = ProxyConfig(port=0, listen=ListenConfig(processes=count, **listen))
    return ProxyPool(config, LogsConfig(), ProxyPoolMetrics(Registry()))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_all_start_on_the_same_ports_and_end_together(log: Path) -> None:
    """Each gets the shared port and its number; SIGHUP reaches all; after the stop none is running."""
    made = pool(3, ws_port=0)
    await made.start()
    ports = made.ports()
    assert set(ports) == {"mqtt", "mqtt-ws"}
    assert log.read_text() == f"start {ports['mqtt']} True 1\n" * 3
    assert made.ready
    assert [each["number"] for each in made.status()] == [1, 2, 3]
    assert {each["admin"] for each in made.status()} == {5}
    with pytest.raises(OSError), socket.socket() as other:
        other.bind(("127.0.0.1", ports["mqtt"]))
    made.reload()
    await until(lambda: log.read_text().count("reload") == 3)
    pids = [each["pid"] for each in made.status()]
    await made.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert made._metrics.restarts.value == 0
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports["mqtt"]))


async def test_one_that_dies_is_started_again_and_counted(log: Path) -> None:
    """The pool is not ready meanwhile."""
    made = pool(2)
    await made.start()
    victim = made.status()[0]["pid"]
    os.kill(victim, signal.SIGKILL)
    await until(lambda: not made.ready)
    await until(lambda: made.ready)
    assert victim not in [each["pid"] for each in made.status()]
    assert made._metrics.restarts.value == 1
    await made.stop()


async def test_proxies_that_never_serve(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails with a reason; until then they are tried with longer and longer pauses."""
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    monkeypatch.setattr(proxy_pool, "START_DEADLINE_S", 1.0)
    made = pool(2)
    with pytest.raises(LightMQError, match="only 0 of 2"):
        await made.start()
    assert 2 <= log.read_text().count("start") <= 12
    await asyncio.sleep(0)
    assert made._processes == {}


async def test_a_port_in_use_leaves_nothing_behind() -> None:
    """It names the option; the ports bound before it are free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = pool(2, ws_port=taken.getsockname()[1])
        with pytest.raises(PortUnavailable) as caught:
            await made.start()
    assert caught.value.option == "--ws-port"
    assert made._reserved == []


def test_the_configuration_passed_on_is_read_back_unchanged(tmp_path: Path) -> None:
    """Every kind of value, with characters that TOML escapes; what is not set stays so."""
    config = ProxyConfig(
        password_file=Path("users"),
        controllers=("a:1", "b:2"),
        quotas=QuotaConfig(filters_refused=("#", 'a,"b"/é\x7f\n')),
        listen=ListenConfig(ws_port=0, tls_port=None),
    )
    text = document({"proxy": config, "logs": LogsConfig(level="warning", json=True)})
    file = tmp_path / "handed.toml"
    file.write_bytes(text)
    assert tomllib.loads(text.decode())["proxy"]["quotas"]["client_bytes_per_s"] == 0.0
    read = load_configuration(file, {}).value
    assert read.proxy == dataclasses.replace(config, password_file=Path("users").absolute())
    assert read.logs == LogsConfig(level="warning", json=True)


def test_configuration_in_the_environment_is_not_applied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable must not override a flag of the pool."""
    monkeypatch.setenv("LIGHTMQ_PROXY__PORT", "1883")
    monkeypatch.setenv("LIGHTMQ_PURE", "1")
    clean = proxy_pool._clean()
    assert "LIGHTMQ_PROXY__PORT" not in clean
    assert clean["LIGHTMQ_PURE"] == "1"
