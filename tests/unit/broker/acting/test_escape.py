"""Delayed messages that are due go to another group while a replica stands in, and are not delivered again here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from broker.acting.abroad import ESCAPED_FROM
from broker.acting.journal import FILE_NAME
from broker.acting.kinds import ESCAPES
from broker.app import BrokerApp
from broker.config import BrokerConfig
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.unit.broker.acting.test_replica import DEADLINE_S, STORE, ElectingPair, acting, at_master, left_alone, until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[ElectingPair]:
    """A group that lets messages escape."""
    made = ElectingPair(tmp_path)
    try:
        await made.start_controller()
        for number in made.ports:
            await made.add(number, escape=True)
        await until(made.master)
        yield made
    finally:
        await made.stop()


@pytest.fixture
async def other(pair: ElectingPair) -> AsyncIterator[BrokerApp]:
    """Another group: a broker of its own."""
    app = BrokerApp(
        BrokerConfig(
            data_directory=pair.directory / "other", broker_name="other", port=0, vip_port=0,
            controllers=pair.controllers, store=STORE,
        )
    )  # fmt: skip
    await app.start()
    yield app
    await app.stop()


async def send(app: BrokerApp, body: bytes, delay_ms: int = 0) -> None:
    pairs = [(b"UNIQ_KEY", b"7F%s" % body.hex().encode()), (b"KEYS", b"k"), (b"own", b"value")]
    pairs += [(b"TIMER_DELAY_MS", b"%d" % delay_ms)] if delay_ms else []
    text = encode_properties(pairs).decode()
    fields = {"a": "p", "b": "later", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": text}
    connection = await dial(f"127.0.0.1:{app.port}")
    reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body), 5_000)
    await connection.close()
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def stored(app: BrokerApp) -> list[StoredMessage]:
    fields = {"consumerGroup": "g", "topic": "later", "queueId": "0", "queueOffset": "0", "sysFlag": "4",
              "maxMsgNums": "32", "subscription": "*"}  # fmt: skip
    connection = await dial(f"127.0.0.1:{app.port}")
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields), 5_000)
    await connection.close()
    return list(iter_stored(reply.body)) if reply.code == 0 else []


async def bodies(app: BrokerApp, count: int) -> list[bytes]:
    """What a consumer finds, once there are so many."""
    async with asyncio.timeout(DEADLINE_S):
        while len(found := await stored(app)) < count:
            await asyncio.sleep(0.01)
    return [message.body for message in found]


async def still_waiting(master: BrokerApp) -> int:
    return master.broker.delayed.messages.waiting


async def waiting(pair: ElectingPair, *delays_ms: int) -> None:
    """Messages at the master, known to both as confirmed."""
    for number, delay_ms in enumerate(delays_ms):
        await at_master(pair, partial(send, body=b"%d" % number, delay_ms=delay_ms))
    await until(pair.master)
    master = pair.master()
    assert master is not None
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))


async def test_what_is_due_is_delivered_once(pair: ElectingPair, other: BrokerApp) -> None:
    await send(other, b"there")
    await waiting(pair, 1_500, 3_600_000)
    number, left = await left_alone(pair)
    await until(lambda: len(acting(left).journal.of(ESCAPES)) == 1)
    assert await bodies(other, 2) == [b"there", b"0"]
    _there, message = await stored(other)
    assert message.born_ms == 5
    shown = dict(message.properties)
    assert (shown[b"UNIQ_KEY"], shown[b"KEYS"], shown[b"own"]) == (b"7F30", b"k", b"value")
    assert shown[ESCAPED_FROM].startswith(b"broker-a/")
    assert b"TIMER_DELAY_MS" not in shown

    await pair.add(3 - number, escape=True)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())
    await at_master(pair, lambda master: send(master, b"last", 10))
    assert set(await at_master(pair, lambda master: bodies(master, 1))) == {b"last"}
    waits = await at_master(pair, still_waiting)
    assert waits == 1, "what is not due waits here"
    assert await bodies(other, 2) == [b"there", b"0"]


async def test_without_another_group_it_waits_for_a_master(pair: ElectingPair) -> None:
    await waiting(pair, 500)
    number, left = await left_alone(pair)
    await until(lambda: acting(left)._escape._others.said)
    assert "no other group" in acting(left)._escape._others.said
    assert not len(acting(left).journal)
    await pair.add(3 - number, escape=True)
    assert await at_master(pair, lambda master: bodies(master, 1)) == [b"0"]


async def test_what_nobody_acknowledged_is_delivered_by_the_next_master(pair: ElectingPair, other: BrokerApp) -> None:
    """The route shows a broker that is gone."""
    await send(other, b"there")
    await waiting(pair, 500)
    assert other._clients is not None
    await other._clients.stop()
    number, left = await left_alone(pair)
    await until(
        lambda: "cannot reach" in acting(left)._escape._others.said or "refused" in acting(left)._escape._others.said
    )
    assert not len(acting(left).journal)
    await pair.add(3 - number, escape=True)
    assert await at_master(pair, lambda master: bodies(master, 1)) == [b"0"]
