"""One queue: lost answers, deleted offsets, a source that went back, a target that has more than was sent."""

from __future__ import annotations

from typing import Any

import pytest

from lightmq.migrate.copier import QueueCopier
from lightmq.migrate.migration import Migration, SteadyPace
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from runtime.clock import SystemClock


async def begun(sides: Any, migration: Migration, *sent: bytes) -> QueueCopier:
    old, _new = sides
    await old.topic("orders", 1)
    await old.send("orders", 0, *sent)
    await migration.read()
    await migration.make()
    (copier,) = migration.copiers
    return copier


async def test_an_answer_that_is_lost_leads_to_no_repeat(sides, migration: Migration, monkeypatch) -> None:
    copier = await begun(sides, migration, b"0", b"1")
    _old, new = sides
    connection = migration.target.connection("new")
    original, lost = type(connection).request, [True]

    async def request(self: Any, command: Command, *more: Any) -> Command:
        answer = await original(self, command, *more)
        if command.code == RequestCode.COPY_MESSAGES and lost:
            lost.clear()
            raise ConnectionLost("the answer is lost")
        return answer

    monkeypatch.setattr(type(connection), "request", request)
    await copier.run(follow=False)
    assert [one.body for one in await new.messages("orders", 0)] == [b"0", b"1"]
    assert copier.offsets.copied == 2


async def test_two_migrations_at_once_copy_each_message_once(sides, clusters, migration: Migration) -> None:
    copier = await begun(sides, migration, b"0")
    old, new = sides
    await copier.run(follow=False)
    other = QueueCopier(copier.queue, *clusters, "rmq", SteadyPace(0, SystemClock()), SystemClock())
    await old.send("orders", 0, b"1")
    await other.run(follow=False)
    await old.send("orders", 0, b"2")
    await copier.run(follow=False)
    assert [one.body for one in await new.messages("orders", 0)] == [b"0", b"1", b"2"]
    assert copier.offsets.copied == 3


async def test_a_source_that_has_lost_messages_is_an_error(sides, clusters, migration: Migration) -> None:
    copier = await begun(sides, migration, b"0", b"1")
    old, _new = sides
    await copier.run(follow=False)
    await old.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    await old.topic("orders", 1)
    await old.send("orders", 0, b"other")
    with pytest.raises(Refused, match="was the topic deleted"):
        await copier.run(follow=False)


async def test_how_much_is_wanted_is_known_before_it_is_copied(sides, clusters, migration: Migration) -> None:
    """What another run has copied is not counted again."""
    copier = await begun(sides, migration, b"0", b"1")
    old, _new = sides
    await copier.run(follow=False)
    assert (copier.counts.wanted, copier.counts.copied) == (2, 2)
    await old.send("orders", 0, b"2", b"3", b"4")
    other = QueueCopier(copier.queue, *clusters, "rmq", SteadyPace(0, SystemClock()), SystemClock())
    await other.run(follow=False)
    assert (other.counts.wanted, other.counts.copied) == (3, 3)
