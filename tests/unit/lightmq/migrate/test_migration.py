"""A whole migration between two brokers in this process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from lightmq.migrate import migration as module
from lightmq.migrate.migration import Migration, Options, SteadyPace
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from runtime.clock import SystemClock
from tests.support.clock import ManualClock


async def bodies(side, topic: str, queue: int) -> list[bytes]:
    return [one.body for one in await side.messages(topic, queue)]


async def test_topics_groups_messages_and_offsets_come_along(sides, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 3)
    await old.topic("unwanted")
    await old.group("billing")
    await old.send("orders", 0, b"a", b"b", b"c")
    await old.send("orders", 2, b"d")
    await old.send("%RETRY%billing", 0, b"again")
    await old.commit("billing", "orders", 0, 2)
    await migration.copy_to_the_end()
    assert await bodies(new, "orders", 0) == [b"a", b"b", b"c"]
    assert await bodies(new, "orders", 2) == [b"d"]
    assert await bodies(new, "%RETRY%billing", 0) == [b"again"]
    assert await new.committed("billing", "orders", 0) == 2
    topics = json.loads((await new.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
    assert (topics["orders"]["readQueueNums"], topics["orders"]["perm"]) == (3, 4)
    assert topics["%RETRY%billing"]["perm"] == 6
    assert "unwanted" not in topics
    await old.send("orders", 0, b"e")
    await migration.copy_to_the_end()
    assert await bodies(new, "orders", 0) == [b"a", b"b", b"c", b"e"]
    first = (await new.messages("orders", 0))[0]
    assert (first.born_ms, first.flag) == (5, 3)


async def test_it_follows_and_continues_over_a_restart_of_the_target(sides, migration: Migration, monkeypatch) -> None:
    monkeypatch.setattr(module, "OFFSETS_S", 0.01)
    monkeypatch.setattr(module, "REFRESH_S", 0.0)
    old, new = sides
    await old.topic("orders", 1)
    await old.send("orders", 0, b"0")
    ready = asyncio.Event()
    running = asyncio.create_task(migration.follow(ready.set))
    await ready.wait()
    await until(lambda: migration_copied(migration) >= 1)
    await new.bench.restart()
    for number in range(1, 20):
        await old.send("orders", 0, b"%d" % number)
    await until(lambda: migration_copied(migration) >= 20)
    await old.topic("later", 1)
    await old.send("later", 0, b"x")
    await until(lambda: any(copier.queue.topic == "later" and copier.counts.copied for copier in migration.copiers))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await bodies(new, "orders", 0) == [b"%d" % number for number in range(20)]
    assert await bodies(new, "later", 0) == [b"x"]


def migration_copied(migration: Migration) -> int:
    return sum(copier.offsets.copied or 0 for copier in migration.copiers if copier.queue.topic == "orders")


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_new_process_continues_and_offsets_go_both_ways(sides, clusters, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 1)
    await old.group("billing")
    await old.send("orders", 0, b"0", b"1", b"2", b"3")
    await old.commit("billing", "orders", 0, 1)
    await migration.copy_to_the_end()
    assert await new.committed("billing", "orders", 0) == 1
    await new.commit("billing", "orders", 0, 3)  # the consumers are here now
    other = Migration(*clusters, Options(name="rmq"), SystemClock())
    await other.copy_to_the_end()
    assert await old.committed("billing", "orders", 0) == 3
    assert await other.keep_offsets_alike() == 0
    await old.commit("billing", "orders", 0, 4)  # and back there
    assert await other.keep_offsets_alike() == 1
    assert await new.committed("billing", "orders", 0) == 4
    assert await bodies(new, "orders", 0) == [b"0", b"1", b"2", b"3"]


async def test_producers_move_and_move_back_without_overtaking(sides, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 1)
    await old.send("orders", 0, b"0")
    await migration.copy_to_the_end()
    with pytest.raises(Refused, match="sending message is forbidden"):
        await new.send("orders", 0, b"too early")
    await old.send("orders", 0, b"1")
    assert await migration.let_producers_in() == ["orders"]
    with pytest.raises(Refused, match="sending message is forbidden"):
        await old.send("orders", 0, b"too late")
    await new.send("orders", 0, b"2")
    assert await bodies(new, "orders", 0) == [b"0", b"1", b"2"]
    await old.topic("orders", 1)  # as at RocketMQ, whose brokers take messages whatever the permission of the topic
    assert await migration.send_producers_back() == ["orders"]
    await old.send("orders", 0, b"3")
    await migration.copy_to_the_end()
    for side in sides:
        assert await bodies(side, "orders", 0) == [b"0", b"1", b"2", b"3"]


async def test_producers_do_not_move_to_queues_without_a_way_back(sides, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 1)
    await new.topic("orders", 3)
    with pytest.raises(Refused, match="orders has 3 queues at new, 1 of the source"):
        await migration.let_producers_in()
    await old.send("orders", 0, b"0")  # its permission is as it was
    one_way = Migration(migration.source, migration.target, replace(migration._options, one_way=True), SystemClock())
    assert await one_way.let_producers_in() == ["orders"]


async def test_producers_are_let_in_when_no_message_comes_any_more(sides, migration: Migration, monkeypatch) -> None:
    """RocketMQ's producers go on until they learn of the new permission."""
    old, new = sides
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    await old.topic("orders", 1)
    permit, late = migration._permit, [b"3", b"2", b"1"]

    async def permitted(cluster, topics, *, write: bool) -> None:
        if cluster is migration.target:
            assert late == []
            await permit(cluster, topics, write=write)

    copy = migration._copied_to_the_end

    async def copying(queues) -> None:
        await copy(queues)
        if late:
            await old.send("orders", 0, late.pop())

    monkeypatch.setattr(migration, "_permit", permitted)
    monkeypatch.setattr(migration, "_copied_to_the_end", copying)
    await migration.let_producers_in()
    assert await bodies(new, "orders", 0) == [b"1", b"2", b"3"]


async def test_what_the_target_refuses_is_listed(sides, migration: Migration) -> None:
    old, new = sides
    await old.topic("orders", 1)
    new.bench.judge_by(lambda _identity, action, resource: (action, resource) != ("admin", "orders"))
    await migration.read()
    await migration.make()
    assert "may not" in migration.refused["topic orders"]
    await old.send("orders", 0, b"0")
    with pytest.raises(ExceptionGroup):
        await migration.copy_to_the_end()


async def test_the_pace_is_that_of_all_copiers_together() -> None:
    clock = ManualClock()
    assert await SteadyPace(0, clock).take(1_000_000) is None
    pace = SteadyPace(1_000, clock)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(pace.take(20), pace.take(30))
    assert loop.time() - began >= 0.049


async def test_what_is_gone_at_the_source_is_named(sides, clusters, migration: Migration) -> None:
    """A topic that was deleted, and queues that were taken away, while they were followed."""
    old, new = sides
    await old.topic("orders", 2)
    await old.topic("other", 1)
    for topic, queue in (("orders", 0), ("orders", 1), ("other", 0)):
        await old.send(topic, queue, b"1")
    await migration.copy_to_the_end()
    await old.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="other")
    await old.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    await old.topic("orders", 1)
    later = Migration(*clusters, Options(name="rmq"), SystemClock())
    left_out = (await later.read()).left_out
    assert left_out["other"] == "the topic is not at the source any more; what was copied is here"
    assert left_out["orders at old/1"] == "this queue is not at the source any more; what was copied is here"
    assert await bodies(new, "other", 0) == [b"1"]
