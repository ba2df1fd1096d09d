"""A will that is due becomes one message, whatever fails meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from broker.wills import feature as module
from remoting.protocol.bodies.packed import decode, encode
from remoting.protocol.bodies.session_body import (
    WILL_DUE,
    SessionClose,
    SessionOpen,
    SessionOpened,
    WillDue,
    WillSpec,
    WillVerdict,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.record import FLAG_RETAIN, RecordView
from tests.support.plants import Plant, catches

PUBLISH = "broker.wills.feature:WillFeature._publish"

SPEC = WillSpec(b"state/pump", b"gone", 1, True, 0, [(b"colour", b"red")], b"anna")


class Judge:
    """A proxy: opens sessions, judges wills."""

    def __init__(self, bench) -> None:
        self.connection = bench.connect()
        self.asked: asyncio.Queue[WillDue] = asyncio.Queue()
        self.connection.on_push(lambda command: self.asked.put_nowait(decode(WillDue, command.body)))

    async def ask(self, code, body=b""):
        return await self.connection.request(Command(code, body=body))

    async def watch(self) -> Judge:
        assert (await self.ask(RequestCode.WILL_WATCH)).code == 0
        return self

    async def open(self, client_id="c", spec=SPEC, **fields) -> int:
        body = encode(SessionOpen(client_id, fields.pop("clean", True), "anna", fields.pop("expiry_s", 0), spec))
        return decode(SessionOpened, (await self.ask(RequestCode.SESSION_OPEN, body)).body).epoch

    async def close(self, epoch, client_id="c", will=WILL_DUE) -> None:
        await self.ask(RequestCode.SESSION_CLOSE, encode(SessionClose(client_id, epoch, False, [], [], None, will)))

    async def due(self) -> WillDue:
        return await asyncio.wait_for(self.asked.get(), 5)

    async def verdict(self, due: WillDue, *, allowed=True) -> Command:
        body = encode(WillVerdict(due.client_id, due.epoch, allowed, "" if allowed else "rules"))
        return await self.ask(RequestCode.WILL_VERDICT, body)


def published(running, topic=b"state/pump") -> list[bytes]:
    queue = running.store.queues.find(names.light_queue_name(topic))
    if queue is None:
        return []
    return [bytes(RecordView(data).body) for data in running.store.reading.read(queue, 0, 100, 1 << 20).records]


async def test_the_proxy_is_asked_and_the_message_has_all_fields_of_the_will(running) -> None:
    judge = await Judge(running).watch()
    epoch = await judge.open()
    await judge.close(epoch)
    due = await judge.due()
    assert due == WillDue("c", epoch, b"state/pump", 1, True, b"anna")
    assert published(running) == []
    assert (await judge.verdict(due)).code == 0
    queue = running.store.queues.find(names.light_queue_name(b"state/pump"))
    record = RecordView(running.store.reading.read(queue, 0, 1, 1 << 20).records[0])
    assert record.body == b"gone"
    assert dict(record.properties())[b"colour"] == b"red"
    assert list(running.broker.retained.table.walk(b"state/pump"))[-1] == (b"state/pump", record.position)
    assert record.flags & FLAG_RETAIN
    assert running.registry.values()["rocketmq_wills_due_total{published}"] == 1
    assert (await judge.verdict(due)).code == 0
    await running.restart()
    assert published(running) == [b"gone"]
    assert len(running.broker.wills.table) == 0


async def test_a_denied_will_is_counted_and_removed(running) -> None:
    judge = await Judge(running).watch()
    await judge.close(await judge.open())
    await judge.verdict(await judge.due(), allowed=False)
    assert published(running) == []
    assert running.registry.values()["rocketmq_wills_due_total{denied}"] == 1
    assert len(running.broker.wills.table) == 0


async def test_a_will_that_cannot_be_stored_is_dropped_with_its_reason(running) -> None:
    judge = await Judge(running).watch()
    await judge.close(await judge.open(spec=WillSpec(b"t", b"x", 1, False, 0, [(b"k", b"v" * 32_767)])))
    await judge.verdict(await judge.due())
    assert running.registry.values()["rocketmq_wills_due_total{refused}"] == 1


async def test_without_a_proxy_it_waits_for_one(running) -> None:
    lost = Judge(running)
    await lost.open()
    await lost.connection.close()
    running.clock.advance_ms(running.config.proxy_grace_ms)
    running.broker.maintain(running.clock.now_ms())
    judge = await Judge(running).watch()
    await judge.verdict(await judge.due())
    assert published(running) == [b"gone"]


async def test_another_proxy_is_asked_when_the_first_does_not_answer(running) -> None:
    first, second = await Judge(running).watch(), await Judge(running).watch()
    await first.close(await first.open())
    await first.due()
    assert second.asked.empty()
    running.clock.advance_ms(running.config.will_verdict_ms)
    running.broker.maintain(running.clock.now_ms())
    await second.verdict(await second.due())
    assert published(running) == [b"gone"]


@catches(
    Plant("removed-and-not-stored", PUBLISH, "except StoreError:\n        wills.keep(will)\n", "except StoreError:\n"),
)
async def test_on_a_full_disk_it_stays_due(running) -> None:
    """Whether the first message of its topic has no room, or one of a topic that is there."""
    judge = await Judge(running).watch()
    for count in (1, 2):
        await judge.close(await judge.open())
        due = await judge.due()
        running.store.disk.full = True
        assert (await judge.verdict(due)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(running.broker.wills.table) == 1
        running.store.disk.full = False
        running.clock.advance_ms(running.config.will_verdict_ms)
        running.broker.maintain(running.clock.now_ms())
        await judge.verdict(await judge.due())
        assert published(running) == [b"gone"] * count


@catches(
    Plant(
        "a-verdict-is-enough", "broker.wills.feature:WillFeature.will_verdict",
        "will is not None and will.is_asked", "will is not None",
    ),
)  # fmt: skip
async def test_a_verdict_that_nobody_asked_for_publishes_nothing(running) -> None:
    """A proxy answers late, or wrongly: the connection is open, and its will is not due."""
    judge = await Judge(running).watch()
    epoch = await judge.open()
    assert (await judge.verdict(WillDue("c", epoch, b"state/pump", 1, True, b"anna"))).code == 0
    assert (published(running), len(running.broker.wills.table)) == ([], 1)
    await judge.close(epoch)
    await judge.verdict(await judge.due())
    assert published(running) == [b"gone"]


async def test_many_at_once_are_judged_in_portions(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASKED_PER_RUN_MAX", 2)
    judge = Judge(running)
    for name in "abcde":
        await judge.close(await judge.open(name), name)
    await judge.watch()
    assert judge.asked.qsize() == 2
    running.clock.advance_ms(module.RUN_PAUSE_MS)
    for _ in range(5):
        await judge.due()
        running.clock.advance_ms(module.RUN_PAUSE_MS)


async def test_after_the_stop_no_proxy_is_asked(running) -> None:
    judge = await Judge(running).watch()
    epoch = await judge.open()
    running.broker.wills.stop()
    await judge.close(epoch)
    assert judge.asked.empty()
