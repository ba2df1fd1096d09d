"""Where reading begins, what is new, and what is stored, against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightmq.servers.all_in_one import AllInOne
from mqtt_bridge.config import RuleConfig
from mqtt_bridge.message import OutMapping
from mqtt_bridge.sender import GroupOffset, LogReader, Outbox
from remoting.client.connection import dial
from remoting.protocol.bodies.pull_body import STATUS_NO_SUCH_QUEUE, STATUS_OFFSET_TOO_SMALL, PulledRange
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from tests.unit.mqtt_bridge.rig import client, connection, installation

RULE = RuleConfig(filter="a/#")


@contextlib.asynccontextmanager
async def reader(app: AllInOne, *rules: RuleConfig, **settings: Any) -> AsyncIterator[tuple[LogReader, Outbox]]:
    line = await dial(f"127.0.0.1:{app.ports()['remoting']}")
    config = connection(1, *(rules or (RULE,)), **settings)
    box = Outbox(9)
    made = LogReader(line, config, OutMapping(config.rules), box)
    await made.begin()
    yield made, box
    await line.close()


async def payloads(made: LogReader, box: Outbox) -> list[bytes]:
    """All new payloads; they count as settled."""
    await made.refresh(0)
    found = []
    for key, cursor in made.pending():
        records, following, missing, count = await made.read(key, cursor)
        assert (missing, count) == ("", 0)
        found += [bytes(record.body) for _offset, record in records]
        box.passed(cursor, following)
    return found


async def publish(app: AllInOne, topic: str, *bodies: bytes) -> None:
    speaker = await client(app, "speaker")
    for body in bodies:
        await asyncio.to_thread(speaker.publish, topic, body)
    speaker.close()


async def test_a_new_bridge_begins_at_the_end_and_continues_where_it_was(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app:
        await publish(app, "a/1", b"old")
        async with reader(app) as (made, box):
            assert await payloads(made, box) == []
        await publish(app, "a/1", b"while away")  # nothing was committed after the beginning: it must not be missed
        async with reader(app) as (made, box):
            assert made.lag == 1
            assert await payloads(made, box) == [b"while away"]
            assert made.lag == 0
            await made.commit()
        async with reader(app) as (made, box):
            assert await payloads(made, box) == []


async def test_a_topic_that_did_not_exist_is_read_from_its_beginning(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app:
        async with reader(app):
            pass
        await publish(app, "a/1", b"first")
        async with reader(app) as (made, box):
            assert await payloads(made, box) == [b"first"]


async def test_a_rule_that_is_new_begins_at_the_end_of_what_is_there(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app:
        async with reader(app):
            pass
        await publish(app, "b/1", b"before the rule")
        async with reader(app, RULE, RuleConfig(filter="b/#")) as (made, box):
            assert await payloads(made, box) == []
            await publish(app, "b/1", b"after")
            assert await payloads(made, box) == [b"after"]


async def test_from_the_earliest_and_everything(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app:
        await publish(app, "a/1", b"1")
        await publish(app, "z", b"2")
        async with reader(app, RuleConfig(filter="#"), start="earliest") as (made, box):
            assert sorted(await payloads(made, box)) == [b"1", b"2"]


async def test_a_poll_waits_for_new_messages(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app, reader(app) as (made, box):
        waiting = asyncio.create_task(made.refresh(20_000))
        await publish(app, "a/1", b"x")
        await asyncio.wait_for(waiting, 10)
        assert len(made.pending()) == 1
        assert await payloads(made, box) == [b"x"]


async def test_expired_messages_are_reported() -> None:
    from mqtt_bridge.sender import _onward

    gone = PulledRange(STATUS_OFFSET_TOO_SMALL, 8, 10, 8, 20, 2, memoryview(b""), memoryview(b""))
    assert _onward(gone, 3, 20) == (10, "retention", 5)
    nowhere = PulledRange(STATUS_NO_SUCH_QUEUE, 0, 0, 0, 0, 0, memoryview(b""), memoryview(b""))
    assert _onward(nowhere, 3, 20) == (20, "queue_gone", 17)


async def test_a_queue_that_is_another_or_shorter(tmp_path: Path) -> None:
    """A recreated topic is read from its beginning; a log that lost its end is read from there."""
    async with installation(tmp_path / "data") as app:
        await publish(app, "a/1", b"x")
        async with reader(app) as (made, box):
            [cursor] = [cursor for cursor in box.cursors.values() if cursor.position]
            cursor.position = 99
            await made.refresh(0)
            assert cursor.position == 1
            cursor.queue_id = 12345
            assert await payloads(made, box) == [b"x"]


async def test_a_deleted_topic_stops_nothing_and_is_new_when_it_is_created_again(tmp_path: Path) -> None:
    async with installation(tmp_path / "data") as app:
        await publish(app, "a/1", b"old", b"older")
        async with reader(app, RuleConfig(filter="#"), start="earliest") as (made, box):
            assert len(await payloads(made, box)) == 2
            line = await dial(f"127.0.0.1:{app.ports()['remoting']}")
            checked(await line.request(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "a"})))
            await line.close()
            await made.refresh(0)
            await made.commit()  # no offset is stored for what is not there
            await publish(app, "b/1", b"other")
            assert await payloads(made, box) == [b"other"]
            await publish(app, "a/1", b"new")
            assert await payloads(made, box) == [b"new"]


async def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    for stored in (None, 0):
        async with installation(tmp_path / "data") as app:
            line = await dial(f"127.0.0.1:{app.ports()['remoting']}")
            offset = GroupOffset(line, "bridge-x", "%LMQ%name", 0)
            assert await offset.stored() == stored
            await offset.store(0)
            assert await offset.stored() == 0
            assert await GroupOffset(line, "bridge-y", "%LMQ%name", 0).stored() is None
            await line.close()


async def test_an_answer_without_an_offset_is_a_violation() -> None:
    class Odd:
        async def request(self, command: Command) -> Command:
            return command.reply()

    with pytest.raises(RemoteViolation, match="without an offset"):
        await GroupOffset(Odd(), "g", "t", 0).stored()  # type: ignore[arg-type]
