"""Lite topics as a whole: random work of clients against a naive model, through restarts, and the timer."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from broker.lite.feature import PASS_S
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.lite.client import (
    INVISIBLE_MS,
    PARENT,
    Message,
    ack,
    make_group,
    make_parent,
    messages_of,
    pop,
    popping,
    send,
    subscribe,
)
from tests.unit.broker.lite.test_requests import expire, feature

TOPICS = ("a", "b", "c")
CLIENTS = ("c1", "c2")
STEPS = 150


class Model:
    """What was sent to each lite topic, what is done, and what clients hold by their last handle."""

    def __init__(self) -> None:
        self.sent: dict[str, list[bytes]] = {name: [] for name in TOPICS}
        self.done: set[bytes] = set()
        self.given: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.held: dict[bytes, Message] = {}

    def got(self, messages: list[Message]) -> None:
        """Messages were given: none that is done, each lite topic in order, nothing past one that a client has."""
        for name in TOPICS:
            mine = [each for each in messages if each.lite_topic == name]
            assert [each.offset for each in mine] == sorted(each.offset for each in mine)
            owed = [body for body in self.sent[name][: self.given[name]] if body not in self.done]
            for at, message in enumerate(mine):
                assert message.body not in self.done
                if owed:
                    assert message.body == owed[at], "what was given before comes first"
                else:
                    assert message.body == self.sent[name][self.given[name]], "neither a gap nor a repeat"
                    self.given[name] += 1
                self.held[message.body] = message


@pytest.mark.parametrize("seed", range(4))
async def test_random_work_is_that_of_a_naive_model(running: BrokerBench, seed: int) -> None:
    chance, model = random.Random(seed), Model()
    await make_parent(running.connect())
    await make_group(running.connect())
    for client in CLIENTS:
        await subscribe(running.connect(), *TOPICS, client=client)
    for number in range(STEPS):
        connection, step = running.connect(), chance.random()
        if step < 0.3:
            name, body = chance.choice(TOPICS), b"%d" % number
            await send(connection, name, body)
            model.sent[name].append(body)
        elif step < 0.6:
            model.got(await pop(connection, chance.choice(CLIENTS), maxMsgNum=chance.choice((1, 2, 32))))
        elif step < 0.9 and model.held:
            body = chance.choice(sorted(model.held))
            assert await ack(connection, model.held.pop(body)) == 0
            model.done.add(body)
        elif step < 0.97:
            await expire(running)
        else:
            await running.restart()
            for client in CLIENTS:
                await subscribe(running.connect(), *TOPICS, client=client)
    await drain(running, model)
    assert model.done == {body for bodies in model.sent.values() for body in bodies}
    assert feature(running).status()["lite_in_flight"] == 0


async def drain(running: BrokerBench, model: Model) -> None:
    """Consume what is left."""
    await expire(running)
    while messages := await pop(running.connect()):
        model.got(messages)
        for message in messages:
            assert await ack(running.connect(), message) == 0
            model.done.add(message.body)


async def test_the_timer_gives_a_message_again_whose_time_is_over(running: BrokerBench) -> None:
    connection = running.connect()
    await make_parent(connection)
    await make_group(connection)
    await subscribe(connection, "a")
    await send(connection, "a", b"0")
    feature(running).start()
    try:
        await pop(connection)
        waiting = asyncio.ensure_future(connection.request(popping(pollTime=30_000)))
        await asyncio.sleep(0)
        running.clock.advance_ms(INVISIBLE_MS)
        (again,) = messages_of(await asyncio.wait_for(waiting, 100 * PASS_S))
        assert (again.body, again.times) == (b"0", 1)
    finally:
        feature(running).stop()


async def test_batches_and_transactions_name_no_lite_topic(running: BrokerBench) -> None:
    connection = running.connect()
    await make_parent(connection)
    assert await send(connection, "a", b"x", more="TRAN_MSG\x01true\x02PGROUP\x01p\x02") == 13
    properties = b"__LITE_TOPIC\x01a\x02"
    part = struct.pack(">iiii", 0, 0, 0, 1) + b"x" + struct.pack(">h", len(properties)) + properties
    body = struct.pack(">i", len(part) + 4) + part
    fields = {"a": "p", "b": PARENT, "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "5", "h": "0", "m": "true"}
    answer = await connection.request(Command(Code.SEND_BATCH_MESSAGE, fields=fields, body=body))
    assert (answer.code, "one by one" in (answer.remark or "")) == (13, True)
    assert feature(running).status()["lite_topics"] == 0
