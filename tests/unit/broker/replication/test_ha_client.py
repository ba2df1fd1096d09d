"""A replica's connection over real sockets and stores: truncation, reset, transfer, reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from broker.replication.ha_client import ReplicationLink
from broker.replication.log_following import MasterStream
from broker.store.errors import StoreFailed
from broker.store.log_store import LogStore
from remoting.protocol.addresses import join_address
from remoting.transport.turn import soon
from tests.sim.replicas import log_bytes
from tests.support.replication import Master, Replica, append, open_store, until


def history(directory: Path, *epochs: int, each: int = 20) -> None:
    """A log with some messages of each epoch."""
    for epoch in epochs:
        store: LogStore = open_store(directory, epoch=epoch)
        append(store, each)
        store.close()


async def test_a_tail_of_its_own_is_cut(tmp_path: Path) -> None:
    """What only a former master had is removed, and the logs are equal byte for byte."""
    history(tmp_path / "replica", 1)
    store = open_store(tmp_path / "replica", role="replica")
    shared = store.end_position
    store.close()
    master = await Master(tmp_path / "master", 1).start()
    replica = Replica(tmp_path / "copy", master)
    append(master.store, 20)
    await until(lambda: replica.store.positions.flushed == master.store.end_position)
    shared = master.store.end_position
    await replica.stop()
    await master.stop()
    history(tmp_path / "copy", 2, each=7)
    master = await Master(tmp_path / "master", 3).start(members=(1, 2))
    end = append(master.store, 30)
    replica = Replica(tmp_path / "copy", master)
    await until(lambda: master.store.confirm_position == end)
    assert replica.client.following.log_copy.cuts == 1
    assert replica.store.replica.epochs == master.store.replica.epochs == [(1, 0), (3, shared)]
    assert log_bytes(tmp_path / "copy") == log_bytes(tmp_path / "master")
    assert replica.client.following.connected
    assert replica.client.following.log_copy.lost_confirmed_bytes == 0
    await replica.stop()
    await master.stop()


async def test_with_nothing_in_common_it_starts_over(tmp_path: Path) -> None:
    """Another history is dropped as a whole."""
    history(tmp_path / "replica", 4, 5)
    history(tmp_path / "master", 1, 2)
    master = await Master(tmp_path / "master", 6).start()
    replica = Replica(tmp_path / "replica", master)
    end = append(master.store, 5)
    await until(lambda: replica.store.positions.flushed == end)
    assert [epoch for epoch, _ in replica.store.replica.epochs] == [1, 2, 6]
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")
    await replica.stop()
    await master.stop()


async def test_it_reconnects_when_its_master_returns(tmp_path: Path) -> None:
    """A lost connection is made again, with a handshake of its own."""
    master = await Master(tmp_path / "master", 1).start()
    port = master.server.port
    replica = Replica(tmp_path / "replica", master)
    append(master.store, 5)
    await until(lambda: replica.store.positions.flushed == master.store.end_position)
    await master.stop()
    await until(lambda: not replica.client.following.connected)
    master = await Master(tmp_path / "master", 2).start(port=port)
    end = append(master.store, 5)
    await until(lambda: replica.store.positions.flushed == end)
    assert replica.client.following.log_copy.cuts == 0
    assert replica.store.replica.epochs == master.store.replica.epochs
    await replica.stop()
    await master.stop()


async def test_a_newer_epoch_ends_the_stream_of_an_older_master(tmp_path: Path) -> None:
    """After `move` nothing more is accepted from the former master, which gets the reason."""
    master = await Master(tmp_path / "master", 3).start()
    replica = Replica(tmp_path / "replica", master)
    await until(lambda: replica.client.following.connected)
    replica.client.following.move(master.address, 9)
    await until(lambda: master.superseded[-1:] == [9])
    await until(lambda: not replica.client.following.connected)
    end = replica.store.end_position
    append(master.store, 5)
    await until(lambda: len(master.superseded) > 1)
    assert replica.store.end_position == end
    assert not replica.failures
    await replica.stop()
    await master.stop()


async def test_a_wrong_secret_gets_nothing(tmp_path: Path) -> None:
    """Refused, and tried again in case it is corrected."""
    master = await Master(tmp_path / "master", 3, keys={"key": "secret"}).start()
    append(master.store, 5)
    replica = Replica(tmp_path / "replica", master, access_key="key", secret="wrong")
    await until(lambda: master.server.streams.refused > 1)
    assert replica.store.end_position == 0
    await replica.stop()
    replica = Replica(tmp_path / "replica", master, access_key="key", secret="secret")
    await until(lambda: replica.store.positions.flushed == master.store.end_position)
    await replica.stop()
    await master.stop()


async def test_a_store_that_fails_ends_it(tmp_path: Path, monkeypatch) -> None:
    """A disk failure is left to the broker and is no reason to dial again."""
    master = await Master(tmp_path / "master", 3).start()
    append(master.store, 5)
    replica = Replica(tmp_path / "replica", master)

    def append_raw(part: object) -> int:
        raise StoreFailed(f"no disk for {part}")

    monkeypatch.setattr(replica.store.replica, "append_raw", append_raw)
    await until(lambda: bool(replica.failures))
    assert isinstance(replica.failures[0], StoreFailed)
    await replica.stop()
    await master.stop()


async def test_no_listener_is_no_failure(tmp_path: Path) -> None:
    """It dials again until it is stopped."""
    replica = Replica(tmp_path / "replica", "127.0.0.1:1")
    await until(lambda: bool(replica.client.following.said))
    assert not replica.failures
    await replica.stop()


class Heard:
    """Takes the place of a link's stream."""

    def __init__(self, filled: Callable[[], object] = lambda: None) -> None:
        self.opened_once, self.bytes, self.ends = False, 0, list[str]()
        self._filled = filled
        self._buffer = memoryview(bytearray(1024))

    def opened(self) -> None:
        self.opened_once = True

    def room(self) -> memoryview:
        return self._buffer

    def filled(self, count: int) -> None:
        self.bytes += count
        self._filled()

    def ended(self, why: str) -> None:
        self.ends.append(why)


@asynccontextmanager
async def linked(heard: Heard) -> AsyncIterator[tuple[ReplicationLink, asyncio.StreamWriter]]:
    """A link, and the master's end of its socket."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    link = ReplicationLink(cast("MasterStream", heard))
    link.dial(join_address(*server.sockets[0].getsockname()), None)
    async with asyncio.timeout(60):
        writer = await accepted
        await until(lambda: heard.opened_once)
        yield link, writer
    link.abort()
    writer.transport.abort()
    server.close()


async def test_what_bytes_ask_for_at_the_end_of_the_turn_is_done_in_it() -> None:
    """No pass of the loop between a part and its flush."""
    done: list[str] = []

    def filled() -> None:
        soon(partial(done.append, "flushed"))
        asyncio.get_running_loop().call_soon(partial(done.append, "another round"))

    async with linked(Heard(filled)) as (_, writer):
        writer.write(b"x")
        while len(done) < 2:
            await asyncio.sleep(0)
    assert done == ["flushed", "another round"]


async def test_a_master_that_leaves_is_reported_once() -> None:
    """A link that has ended writes nothing any more."""
    heard = Heard()
    async with linked(heard) as (link, writer):
        writer.write_eof()
        await until(lambda: bool(heard.ends))
        link.send(b"too late")
        link.abort()
        await asyncio.sleep(0)
    assert heard.ends == ["the master closed the connection"]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_an_attempt_to_connect_can_be_ended(turns: int) -> None:
    """Its stream hears of it like of any other end, even when the attempt has not begun."""
    heard = Heard()
    link = ReplicationLink(cast("MasterStream", heard))
    dialling = link.dial("192.0.2.1:1", None)  # a network of examples: nobody answers
    for _ in range(turns):
        await asyncio.sleep(0)
    link.abort()
    await asyncio.wait([dialling])
    await until(lambda: bool(heard.ends))
    assert not heard.opened_once
    assert len(heard.ends) == 1


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_link_that_is_aborted_while_it_is_made_ends_once(loop: str, turns: int) -> None:
    """Whatever its loop has done by then; otherwise no other master would ever be dialled."""
    heard = Heard()

    async def abort() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.transport.abort(), "127.0.0.1", 0)
        link = ReplicationLink(cast("MasterStream", heard))
        dialling = link.dial(join_address(*server.sockets[0].getsockname()), None)
        for _ in range(turns):
            await asyncio.sleep(0)
        link.abort()
        await asyncio.wait([dialling])
        await until(lambda: bool(heard.ends))
        server.close()

    with asyncio.Runner(loop_factory=pytest.importorskip(loop).new_event_loop) as runner:
        runner.run(abort())
    assert len(heard.ends) == 1
