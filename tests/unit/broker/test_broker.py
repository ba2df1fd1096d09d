"""The helpers every handler relies on: answers wait for the confirm, upkeep expires and counts."""

from __future__ import annotations

import asyncio
import errno

from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command


class Peer:
    def __init__(self) -> None:
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)


async def test_an_answer_waits_for_the_position_it_shows(running) -> None:
    peer = Peer()
    running.broker.topics.table.ensure("t", 1)
    running.broker.tools.answers.reply_at(running.store.end_position, peer, Command(1).reply(body=b"shown"))
    assert not peer.sent
    await running.settle()
    assert [reply.body for reply in peer.sent] == [b"shown"]


async def test_when_the_store_fails_the_refusal_is_the_answer(running) -> None:
    peer = Peer()
    running.faults.arm("log.fsync", OSError(errno.EIO, "the disk is gone"), times=None)
    running.broker.topics.table.ensure("t", 1)
    running.broker.tools.answers.reply_at(running.store.end_position, peer, Command(1).reply(body=b"shown"))
    async with asyncio.timeout(5):
        while not peer.sent:
            await asyncio.sleep(0)
    (reply,) = peer.sent
    assert (reply.code, reply.body) == (ResponseCode.SERVICE_NOT_AVAILABLE, b"")
    assert "the disk is gone" in reply.remark


async def test_upkeep_expires_and_counts(running) -> None:
    filters = running.broker.subscriptions.filters
    filters.acquire(b"a/#")
    filters.release(b"a/#", running.clock.now_ms(), lost=True)
    running.clock.advance_ms(running.config.filter_expiry_s * 1_000)
    running.broker.maintain(running.clock.now_ms())
    assert len(filters) == 0
    assert running.registry.values()["rocketmq_broker_drops_total{filter_expired}"] == 1


async def test_names_ends_and_ids(running) -> None:
    broker = running.broker
    queue_id = broker.topics.table.queue_ids(broker.topics.table.ensure("t", 1).name)[0]
    light = running.store.queues.open(b"%LMQ%x")
    assert [broker.topics.visible.title(item) for item in (queue_id, light, 999)] == ["t/#", "x", ""]
    assert broker.topics.visible.end(999) == 0
    ids = {broker.tools.identity.unique_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(item) for item in ids} == {32}
