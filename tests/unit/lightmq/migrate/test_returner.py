"""The way back of one queue: lost answers, two migrations, copies that are left out, what is kept of a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.migration.returned import RETURNED_KEY, ReturnMark
from lightmq.migrate import returner as module
from lightmq.migrate.copier import QueueCopier
from lightmq.migrate.migration import Migration
from lightmq.migrate.returner import QueueReturner
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from runtime.clock import SystemClock


@pytest.fixture
async def copier(sides: Any, migration: Migration, monkeypatch: pytest.MonkeyPatch) -> QueueCopier:
    """One message copied; both sides take writes."""
    monkeypatch.setattr(module, "LATE_S", 0.01)
    old, new = sides
    await old.topic("orders", 1)
    await old.send("orders", 0, b"0")
    await migration.copy_to_the_end()
    await new.topic("orders", 1)
    (found,) = migration.copiers
    await migration.target.begin_return("new", found.name, "orders", 0)
    return found


@asynccontextmanager
async def running(migration: Migration, copier: QueueCopier) -> AsyncIterator[QueueReturner]:
    back = QueueReturner(copier, migration.source, migration.target, SystemClock())
    tasks = [asyncio.create_task(copier.run(follow=True)), asyncio.create_task(back.run())]
    yield back
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(copier: QueueCopier, returned: int) -> None:
    async with asyncio.timeout(20):
        while sum(run.count for run in copier.offsets.back.holding) < returned:
            await asyncio.sleep(0.01)


async def test_what_is_sent_here_goes_back_once_and_does_not_come_again(sides, migration, copier) -> None:
    old, new = sides
    async with running(migration, copier) as back:
        await new.send("orders", 0, b"1", b"2")
        await until(copier, 2)
        await old.send("orders", 0, b"3")  # a producer that does not know that producers have moved
        await new.send("orders", 0, b"4")
        await until(copier, 3)
        assert back.sent == 3
    assert {one.body for one in await old.messages("orders", 0)} == {b"0", b"1", b"2", b"3", b"4"}
    assert {one.body for one in await new.messages("orders", 0)} == {b"0", b"1", b"2", b"3", b"4"}
    kept = [one for one in await old.messages("orders", 0) if one.body == b"1"]
    assert [(one.flag, one.born_ms) for one in kept] == [(3, 5)]
    mark = dict(kept[0].properties)[RETURNED_KEY]
    assert mark == ReturnMark("rmq/old/0", "orders", 0, 1, 5).encode()


async def test_a_lost_answer_leads_to_no_repeat(sides, migration, copier, monkeypatch) -> None:
    old, new = sides
    connection = migration.source.connection("old")
    original, lost = type(connection).request, [True]

    async def request(self: Any, command: Command, *more: Any) -> Command:
        answer = await original(self, command, *more)
        if self is connection and command.code == RequestCode.SEND_MESSAGE_V2 and lost:
            lost.clear()
            raise ConnectionLost("the answer is lost")
        return answer

    monkeypatch.setattr(type(connection), "request", request)
    async with running(migration, copier):
        await new.send("orders", 0, b"1")
        await until(copier, 1)
        await new.send("orders", 0, b"2")
        await until(copier, 2)
    assert not lost
    assert [one.body for one in await old.messages("orders", 0)] == [b"0", b"1", b"2"]


async def test_another_migration_waits(sides, migration, copier) -> None:
    _old, new = sides
    async with running(migration, copier):
        await new.send("orders", 0, b"1")
        await until(copier, 1)
        other = QueueReturner(copier, migration.source, migration.target, SystemClock())
        with pytest.raises(Refused, match="another migration mirrors orders/0 back"):
            await other._begin()


async def test_messages_without_a_delay_and_of_many_bytes(sides, migration, copier, monkeypatch) -> None:
    """A delay that is over is not waited for again; batches are limited."""
    old, new = sides
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 5)
    async with running(migration, copier):
        await new.ask(RequestCode.SEND_MESSAGE, b"late", topic="orders", producerGroup="p", queueId=0, bornTimestamp=6,
                      properties="own\x01v\x02", reconsumeTimes=2)  # fmt: skip
        await new.send("orders", 0, b"aaa", b"bbb", b"c")
        await until(copier, 4)
    found = await old.messages("orders", 0)
    assert [one.body for one in found] == [b"0", b"late", b"aaa", b"bbb", b"c"]
    assert (found[1].reconsume_times, dict(found[1].properties)[b"own"]) == (2, b"v")
