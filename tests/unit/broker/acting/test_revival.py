"""Messages whose time with a POP consumer is over while a replica stands in: another group has them, once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import pytest

from broker.acting import journal as journal_module
from broker.acting.abroad import ESCAPED_FROM
from broker.acting.journal import FILE_NAME
from broker.acting.kinds import POPS
from broker.acting.revival import ActingRevival
from broker.app import BrokerApp
from broker.groups.groups import dead_letter_topic
from broker.pop.handles import retry_topic
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.rocketmq_form import FIRST_POP_TIME
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.unit.broker.acting.test_escape import other, pair  # noqa: F401
from tests.unit.broker.acting.test_pops import CHANGE, Behind, Standing, asked, connected, popped
from tests.unit.broker.acting.test_replica import ElectingPair, acting, at_master, left_alone, until
from tests.unit.broker.pop.client import GROUP, INVISIBLE_MS, TOPIC, Message, expire, pop, pull, send


async def stored(app: BrokerApp, topic: str, count: int) -> list[StoredMessage]:
    """What a topic has, once it has so many."""
    connection = await connected(app)
    try:
        while True:
            reply = await pull(connection, topic, consumerGroup="reader")
            found = list(iter_stored(reply.body)) if reply.code == ResponseCode.SUCCESS else []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def given_by(pair: ElectingPair, *bodies: bytes, **fields: object) -> dict[bytes, Message]:  # noqa: F811
    """Messages that the master gave, which both brokers know to be confirmed."""
    connection = await connected(pair.master())
    await send(connection, *bodies)
    found = dict[bytes, Message]()
    while len(found) < len(bodies):
        found |= {message.body: message for message in await pop(connection, pollTime=5_000, **fields)}
    await connection.close()
    end = pair.master()._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))
    return found


async def test_what_is_over_is_given_by_another_group_once(pair: ElectingPair, other: BrokerApp) -> None:  # noqa: F811
    connection = await connected(other)
    await send(connection, b"there")
    await connection.close()
    late = await given_by(pair, b"late", invisibleTime=2_000)
    done = await given_by(pair, b"done", invisibleTime=600_000)
    number, left = await left_alone(pair)
    assert (await asked(left, done[b"done"].command())).code == ResponseCode.SUCCESS
    await until(lambda: len(acting(left).journal.of(POPS)) == 2)
    (message,) = await stored(other, retry_topic(GROUP, TOPIC), 1)
    assert (message.body, message.reconsume_times) == (b"late", 1)
    shown = dict(message.properties)
    assert shown[ESCAPED_FROM].startswith(b"broker-a/")
    assert (shown[b"RETRY_TOPIC"], shown[FIRST_POP_TIME]) == (TOPIC.encode(), late[b"late"].handle.split()[1].encode())
    assert (await asked(left, late[b"late"].command())).code == ResponseCode.NO_MESSAGE

    await pair.add(3 - number, escape=True)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())

    async def next_given(master: BrokerApp) -> list[bytes]:
        connection = await connected(master)
        await send(connection, b"next")
        await connection.close()
        while not (messages := await popped(master, pollTime=5_000)):
            continue
        return [message.body for message in messages]

    assert set(await at_master(pair, next_given)) == {b"next"}
    assert {message.body for message in await popped(other)} == {b"there", b"late"}


async def test_a_message_tried_too_often_is_a_dead_letter_there(pair: ElectingPair, other: BrokerApp) -> None:  # noqa: F811
    """By the limit that the group has here."""
    connection = await connected(other)
    await send(connection, b"there")
    await connection.close()
    groups = pair.master().broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), retry_max_times=0))
    await given_by(pair, b"poison", invisibleTime=2_000)
    await left_alone(pair)
    (message,) = await stored(other, dead_letter_topic(GROUP), 1)
    assert message.body == b"poison"


class Others:
    """Another group, that takes what it is sent or not, when it may."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, str, int]] = []
        self.takes, self.reached, self.go = True, asyncio.Event(), asyncio.Event()
        self.go.set()
        self.said = ""

    async def send(
        self, message: StoredMessage, properties: Iterable, position: int, to: str, more: Mapping[str, str]
    ) -> bool:
        assert {key for key, _value in properties} >= {b"RETRY_TOPIC", FIRST_POP_TIME}
        self.reached.set()
        await self.go.wait()
        if self.takes:
            self.sent.append((message.body, to, message.reconsume_times))
        return self.takes

    def say(self, why: str) -> None:
        self.said = why


class Reviving(Standing):
    """What revives over the log of a running broker."""

    def __init__(self, running, directory: Path) -> None:
        super().__init__(running, directory)
        self.others = Others()
        self.acts = True
        self.begin()

    def begin(self) -> None:
        self.revival = ActingRevival(
            self.pops, self.given_here, self.journal, self.others, now_ms=self.running.clock.now_ms
        )
        self.revival.start()

    async def over(self, ms: int = INVISIBLE_MS) -> bool:
        self.running.clock.advance_ms(ms)
        return await self.revival.deliver(self.store, lambda: self.acts)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for body, _topic, _times in self.others.sent)


@pytest.fixture
def reviving(running, tmp_path: Path) -> Reviving:
    return Reviving(running, tmp_path)


async def test_only_what_is_over_and_not_done_leaves(reviving: Reviving) -> None:
    messages = await reviving.given(*(b"%d" % number for number in range(5)))
    assert await reviving.over(0)
    await reviving.ask(messages[0].command())
    await reviving.ask(messages[1].command(CHANGE, invisibleTime=2 * INVISIBLE_MS))
    await reviving.ask(messages[2].command(CHANGE, invisibleTime=5))
    assert await reviving.over(6)
    assert reviving.bodies == [b"2"]
    assert await reviving.over(INVISIBLE_MS - 6)
    assert reviving.others.sent == [(b"2", retry_topic(GROUP, TOPIC), 1), *(
        (body, retry_topic(GROUP, TOPIC), 1) for body in (b"3", b"4"))]  # fmt: skip
    await reviving.hand_over()
    await expire(reviving.running, INVISIBLE_MS + 1)
    assert [message.body for message in await pop(reviving.running.connect())] == [b"1"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_the_replica_gave_in_order_stays(reviving: Reviving, restarted: bool) -> None:
    """It is given again here, in its place."""
    await send(reviving.running.connect(), b"1", queue=0)
    kept, queue, owned = asyncio.Event(), (GROUP, TOPIC, 0), (reviving.running.clock.now_ms(), INVISIBLE_MS)
    entries = reviving.given_here.give(queue, [(0, 0)], owned, front=1, passed=1, attempt="a")
    reviving.given_here.keep(entries, lambda _refused: kept.set())
    await kept.wait()
    if restarted:
        reviving.begin()
    else:
        reviving.given_here.moved((*queue, 0), sum(owned))
    assert await reviving.over(2 * INVISIBLE_MS)
    assert not reviving.others.sent


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_the_replica_gave_itself_leaves_too(reviving: Reviving, restarted: bool) -> None:
    await reviving.given(b"masters", invisibleTime=9 * INVISIBLE_MS)
    await send(reviving.running.connect(), b"1", b"2", queue=0)
    now_ms, kept = reviving.running.clock.now_ms(), asyncio.Event()
    queue, owned = (GROUP, TOPIC, 0), (now_ms, INVISIBLE_MS)
    entries = reviving.given_here.give(queue, [(1, 1), (2, 2)], owned, front=3, passed=3)
    reviving.given_here.keep(entries, lambda _refused: kept.set())
    await kept.wait()
    if restarted:
        reviving.begin()
    else:
        for offset in (1, 2):
            reviving.given_here.moved((*queue, offset), sum(owned))
    assert await reviving.over(INVISIBLE_MS - 1)
    assert not reviving.others.sent
    assert await reviving.over(1)
    assert reviving.bodies == [b"1", b"2"]
    assert reviving.given_here.taken(queue) == 0
    assert await reviving.over()
    assert len(reviving.others.sent) == 2, "once"


async def test_what_nobody_took_is_tried_again(reviving: Reviving) -> None:
    (message,) = await reviving.given(b"1")
    reviving.others.takes = False
    assert not await reviving.over()
    assert await reviving.over(1), "not yet"
    assert not await reviving.over(1_000)
    assert (await reviving.ask(message.command(CHANGE, invisibleTime=2_000))).code == ResponseCode.SUCCESS
    reviving.others.takes = True
    await reviving.over(1_000)
    assert not reviving.others.sent
    reviving.begin()
    await reviving.over(1_000)
    assert reviving.bodies == [b"1"], "a restart knows its new time"


async def test_while_it_leaves_nobody_has_it(reviving: Reviving) -> None:
    (message,) = await reviving.given(b"1")
    reviving.others.go.clear()
    delivery = asyncio.ensure_future(reviving.over())
    await reviving.others.reached.wait()
    assert await reviving.refusal(message.command()) == ResponseCode.NO_MESSAGE
    assert await reviving.refusal(message.command(CHANGE, invisibleTime=9)) == ResponseCode.NO_MESSAGE
    reviving.others.takes = False
    reviving.others.go.set()
    assert not await delivery
    assert (await reviving.ask(message.command())).code == ResponseCode.SUCCESS, "it has not left"


async def test_what_is_in_order_stays(reviving: Reviving) -> None:
    (message,) = await reviving.given(b"1", order="true")
    await reviving.ask(message.command(CHANGE, invisibleTime=5))
    assert await reviving.over(2 * INVISIBLE_MS)
    assert not reviving.others.sent


async def test_a_full_journal_lets_nothing_leave(reviving: Reviving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be passed over."""
    await reviving.given(b"1")
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 0)
    assert not await reviving.over()
    assert (reviving.others.sent, reviving.others.said) == ([], "the journal is full")


async def test_a_group_that_is_gone_has_nothing(reviving: Reviving) -> None:
    await reviving.given(b"1")
    deletion = Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields={"groupName": GROUP})
    assert (await reviving.running.connect().request(deletion)).code == ResponseCode.SUCCESS
    assert await reviving.over()
    assert not reviving.others.sent


async def test_more_than_one_group_of_them_leaves(reviving: Reviving) -> None:
    await reviving.given(*(b"%03d" % number for number in range(32)))
    for _ in range(3):
        await reviving.given(*(b"%03d" % number for number in range(32)))
    assert await reviving.over()
    assert len(reviving.others.sent) == 128


async def test_nothing_leaves_once_there_is_a_master(reviving: Reviving) -> None:
    await reviving.given(b"1")
    reviving.acts = False
    assert await reviving.over()
    assert not reviving.others.sent


async def test_what_is_not_known_to_be_confirmed_waits(reviving: Reviving) -> None:
    (_message,) = await reviving.given(b"1")
    behind = Behind(reviving.store)
    reviving.store = behind
    assert await reviving.over()
    assert not reviving.others.sent
    behind.confirm_position = behind.end_position
    assert await reviving.over(1_000)
    assert reviving.bodies == [b"1"]
