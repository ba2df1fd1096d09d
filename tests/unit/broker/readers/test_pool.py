"""Reader processes are started, counted, started again, and ended; the children here are scripts of a few lines."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable

import pytest

from broker.metrics import BrokerMetrics, ReaderMetrics
from broker.readers import pool
from broker.readers.messages import ReaderSettings
from broker.readers.pool import ReaderPool
from runtime.logs import get_logger
from runtime.metrics import Registry

SERVES = """
import json, sys
settings = json.loads(sys.stdin.readline())
assert settings["access_keys"] == ["a:b"]
by_reason = {"refused": {"corrupt": 1}, "withheld": {"no_rule": 4}}
print(json.dumps({"requests": 2, "records": 3, "bytes": 5, "viewed": 1, "retries": 7, **by_reason}), flush=True)
print("what is this", flush=True)
by_reason = {"refused": {"corrupt": 2}, "withheld": {"no_rule": 9}}
print(json.dumps({"requests": 4, "records": 6, "bytes": 10, "viewed": 5, "retries": 14, **by_reason}), flush=True)
sys.stdin.read()
"""
FAILS = "import sys; sys.exit(3)"
HANGS = "import signal, sys; print('{}', flush=True); signal.pause()"

Make = Callable[..., ReaderPool]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def make(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(script: str, count: int = 1, port: int = 0) -> ReaderPool:
        monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", script))
        settings = ReaderSettings(
            directory="/d", host="127.0.0.1", port=port, access_keys=("a:b",), pull_bytes_max=1,
            frame_size_bytes_max=2, output_bytes_max=3, connections_max=4,
        )  # fmt: skip
        return ReaderPool(count, settings, ReaderMetrics(registry, BrokerMetrics(registry)), get_logger("test"))

    return made


async def until(readers: ReaderPool, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20), readers.changed:
        await readers.changed.wait_for(condition)


async def test_they_serve_on_one_port_and_their_counts_are_added_up(make: Make, registry: Registry) -> None:
    readers = make(SERVES, 2)
    port = readers.start()
    assert port > 0
    await until(readers, lambda: len(readers.processes) == 2)
    while registry.values()["rocketmq_range_reader_requests_total"] < 8:
        await asyncio.sleep(0.01)
    values = registry.values()
    assert values["rocketmq_range_readers"] == 2
    assert values["rocketmq_range_reader_bytes_total"] == values["rocketmq_bytes_out_total"] == 20
    assert (values["rocketmq_messages_out_total"], values["rocketmq_messages_viewed_total"]) == (12, 10)
    assert values["rocketmq_range_reader_retries_total"] == 28
    assert values["rocketmq_range_reader_refused_total{corrupt}"] == 4
    assert values["rocketmq_messages_withheld_total{no_rule}"] == 18
    children = [process.pid for process in readers.processes.values()]
    await readers.stop()
    assert not readers.serving
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_one_that_is_killed_is_started_again(make: Make, registry: Registry) -> None:
    readers = make(SERVES)
    readers.start()
    await until(readers, lambda: readers.serving)
    first = readers.processes[0]
    os.kill(first.pid, signal.SIGKILL)
    await until(readers, lambda: readers.processes.get(0, first) is not first)
    assert registry.values()["rocketmq_range_reader_restarts_total"] == 1
    await readers.stop()


async def test_one_that_ends_before_it_gets_its_settings(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe to it is closed during the write; with uvloop that is another error than with asyncio."""
    readers = make(SERVES)
    readers.start()
    await until(readers, lambda: readers.serving)
    process = readers.processes[0]

    def closed(_data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    monkeypatch.setattr(asyncio.StreamWriter, "write", lambda _self, data: closed(data))
    os.kill(process.pid, signal.SIGKILL)
    await until(readers, lambda: not readers.serving)
    monkeypatch.undo()
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", SERVES))
    await until(readers, lambda: readers.serving)
    await readers.stop()


async def test_one_that_cannot_start_is_started_again_and_again(
    make: Make, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PAUSE_MIN_S", 0.001)
    monkeypatch.setattr(pool, "PAUSE_MAX_S", 0.002)
    readers = make(FAILS)
    readers.start()
    while registry.values()["rocketmq_range_reader_restarts_total"] < 3:
        await asyncio.sleep(0.01)
    assert not readers.serving
    monkeypatch.setattr(pool, "COMMAND", ("/no/such/program",))
    before = registry.values()["rocketmq_range_reader_restarts_total"]
    while registry.values()["rocketmq_range_reader_restarts_total"] < before + 3:
        await asyncio.sleep(0.01)
    await readers.stop()


async def test_one_that_does_not_end_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STOP_DEADLINE_S", 0.05)
    readers = make(HANGS)
    readers.start()
    await until(readers, lambda: readers.serving)
    pid = readers.processes[0].pid
    await readers.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_port_is_reserved_while_the_pool_runs(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="for the readers"):
        make(SERVES, port=taken.getsockname()[1]).start()
    readers = make(FAILS)
    port = readers.start()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    await readers.stop()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
