"""HISTORY at a replica: what it knows between two positions, and no word about where a history begins or ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.history import feature as history
from remoting.client.connection import dial
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    HistoryReply,
    HistoryRequest,
    HistoryStart,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
    unpack_before,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records
from remoting.transport.contracts import Connection
from tests.unit.broker.roles.cluster import Cluster, cluster, until

FILTER = "plant/+"
"""Covers the topic that `publish` writes to."""


async def subscribed(made: Cluster) -> int:
    """Subscribe to the filter from its beginning; its queue."""
    assert made.connection is not None

    async def ask(code: int, body: bytes) -> bytes:
        reply = await made.connection.request(Command(code, body=body), 20_000)
        assert reply.code == 0, reply.remark
        return reply.body

    opened = decode(SessionOpened, await ask(RequestCode.SESSION_OPEN, encode(SessionOpen("c", False, None, 60))))
    wanted = [FilterRequest(FILTER, 1, history=HistoryStart(from_offset=0))]
    body = encode(SubscribeRequest("c", opened.epoch, True, wanted))
    (result,) = decode(Subscribed, await ask(RequestCode.SUBSCRIBE, body)).results
    assert result.before is not None
    assert unpack_before(result.before) == (0, 0, 0)
    return result.queue_id


class Reader:
    """Asks one replica, step by step."""

    def __init__(self, connection: Connection, queue: int) -> None:
        self.connection, self.queue = connection, queue

    async def ask(self, position: int = 0, *, from_ms: int = 0, last: int = 0, from_replica: bool = True) -> Command:
        body = encode(HistoryRequest(self.queue, FILTER, position, from_ms, last))
        fields = {FROM_REPLICA_FIELD: "true"} if from_replica else {}
        return await self.connection.request(Command(RequestCode.HISTORY, fields=fields, body=body), 5_000)

    async def read(self) -> tuple[list[int], int, Command]:
        """All that is given from the beginning on, the position behind it, and the last answer."""
        numbers: list[int] = []
        position = 0
        while True:
            reply = await self.ask(position)
            if reply.code != 0:
                return numbers, position, reply
            found = decode(HistoryReply, reply.body)
            assert found.position >= position
            numbers += [int(bytes(record.body)) for record in iter_records(found.records)]
            position = found.position
            if found.done:
                return numbers, position, reply


@asynccontextmanager
async def reading(app: BrokerApp, queue: int) -> AsyncIterator[Reader]:
    connection = await dial(f"127.0.0.1:{app.port}")
    try:
        yield Reader(connection, queue)
    finally:
        await connection.close()


def replica_of(made: Cluster) -> BrokerApp:
    master = made.master()
    return next(app for app in made.brokers.values() if app is not master)


def confirmed(app: BrokerApp) -> int:
    assert app._member is not None
    assert app._member.store is not None
    return app._member.store.confirm_position


async def level(made: Cluster, app: BrokerApp) -> None:
    """Wait until the replica knows all that its master has confirmed."""
    master = made.master()
    assert master is not None
    await until(lambda: confirmed(app) == confirmed(master))


async def test_a_replica_gives_what_was_before_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps; the end it knows once the filter's queue has a message, until then the master is to be asked."""
    monkeypatch.setattr(history, "STEP_MAX", (7, 64 * 1024))
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        await made.publish(*(b"%d" % n for n in range(30)))
        queue, replica = await subscribed(made), replica_of(made)
        await level(made, replica)
        async with reading(replica, queue) as reader:
            numbers, position, answer = await reader.read()
            assert numbers == list(range(30))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert f"nothing behind position {position}" in (answer.remark or "")
            assert position <= confirmed(replica)
            await made.publish(b"30", b"31")
            await level(made, replica)
            done = decode(HistoryReply, (await reader.ask(position)).body)
            assert (done.done, bytes(done.records)) == (True, b"")
            numbers, _position, answer = await reader.read()
            assert (numbers, answer.code) == (list(range(30)), ResponseCode.SUCCESS)
            assert (await reader.ask(from_replica=False)).code == ResponseCode.NOT_MASTER
            reader.queue = 9_999
            assert (await reader.ask()).code == ResponseCode.INVALID_PARAMETER


async def test_where_a_history_begins_is_asked_of_the_master(tmp_path: Path) -> None:
    """By time or by number: a replica that lacks the newest messages would begin elsewhere."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        await made.publish(b"0")
        queue, replica = await subscribed(made), replica_of(made)
        await level(made, replica)
        async with reading(replica, queue) as reader:
            for reply in (await reader.ask(last=1), await reader.ask(from_ms=1)):
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "where a history begins" in (reply.remark or "")
            assert (await reader.ask(1, from_ms=1)).code == ResponseCode.SUCCESS


async def test_a_replica_that_is_behind_takes_no_reader_back(tmp_path: Path) -> None:
    """It has the bytes but does not know that they are confirmed: who has read further is sent to the master."""
    async with cluster(tmp_path, 3, stream_heartbeat_ms=50, lag_limit_ms=600_000) as made:
        await made.publish(b"0")
        queue, master = await subscribed(made), made.master()
        assert master is not None
        replica, mute = (app for app in made.brokers.values() if app is not master)
        await level(made, replica)
        client = mute._member.client if mute._member is not None else None
        follower = client.following.stream.follower if client is not None and client.following.stream else None
        assert follower is not None
        follower.flushed = lambda end: ()  # type: ignore[method-assign]
        sending = asyncio.create_task(made.publish(b"1"))
        here = replica._member.store if replica._member is not None else None
        assert here is not None
        await until(lambda: here.end_position > here.confirm_position)
        async with reading(replica, queue) as reader:
            numbers, _position, _answer = await reader.read()
            assert numbers == [0]
            assert (await reader.ask(here.end_position)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
