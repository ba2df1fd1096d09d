"""POP in order: the table against a naive one, and whole scenarios over a broker on a real store."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pop.handles import retry_topic
from broker.pop.ordered import ATTEMPT_BYTES_MAX, OrderedQueues, decode_batch, encode_batch
from broker.pop.popping import ORDERED_REVIVE_QUEUE
from broker.store.errors import CorruptLog, UnreadableOffsets
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.stored_message import iter_stored
from tests.unit.broker.pop.client import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    Message,
    ack,
    expire,
    feature,
    pop,
    popping,
    refused,
    send,
    set_mode,
)  # fmt: skip

QUEUES = (("a", 1), ("ab", 1), ("a", 2))


class Model:
    """The table under test beside one of single messages."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.table = OrderedQueues(self.values.get)
        self.now = 1_000
        self.owned: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {place: {} for place in QUEUES}
        self.attempts: dict[tuple[str, int], bytes] = {}

    def write(self, changes) -> None:
        for change in changes:
            if change.value is None:
                del self.values[change.key]
            else:
                self.values[change.key] = change.value
            self.table.written(change)

    def give(self, place: tuple[str, int], attempt: bytes, offsets: set[int], reached: int, invisible: int) -> None:
        given, mine = sorted(offsets), self.owned[place]
        reached = max([reached, *(offset + 1 for offset in given)])
        given = [offset for offset in given if not mine or offset in mine or offset > max(mine)]
        self.write(self.table.give(*place, attempt, given, reached, (self.now, invisible)))
        if not given and all(offset >= reached for offset in mine):
            return
        repeated = bool(attempt) and bool(mine) and self.attempts.get(place) == attempt
        times = {at: (mine[at][2] + (not repeated) if at in mine else 0) for at in given}
        for at in [at for at in mine if at < reached]:
            del mine[at]
        mine.update({at: (self.now, invisible, times[at]) for at in given})
        self.attempts[place] = attempt

    def release(self, place: tuple[str, int], first: int, count: int) -> None:
        mine = sorted(self.owned[place])
        wanted = {mine[(first + at) % len(mine)] for at in range(min(count, len(mine)))}
        if wanted:
            self.write(self.table.release(*place, sorted(wanted)))
        for offset in wanted:
            del self.owned[place][offset]

    def move(self, place: tuple[str, int], first: int, invisible: int) -> None:
        mine = sorted(self.owned[place])
        if mine:
            offset = mine[first % len(mine)]
            self.write(self.table.move(*place, offset, (self.now, invisible)))
            self.owned[place][offset] = (self.now, invisible, self.owned[place][offset][2])

    def passes(self, later: int) -> None:
        self.now += later
        free = {
            place
            for place, mine in self.owned.items()
            if mine and all(pop + invisible <= self.now for pop, invisible, _times in mine.values())
        }
        assert set(self.table.take_due(self.now)) == free
        for place in free:
            self.table.postpone(*place, self.now)

    def check(self, table: OrderedQueues) -> None:
        assert len(table) == sum(map(len, self.owned.values()))
        for place, mine in self.owned.items():
            batch = table.batch(*place)
            if not mine:
                assert batch is None
                continue
            assert batch is not None
            assert list(batch.entries) == [(at, *mine[at]) for at in sorted(mine)]
            assert batch.attempt == self.attempts[place]
            assert all(table.find(*place, at) == owned[:2] for at, owned in mine.items())
            assert batch.is_free(b"", self.now) == all(pop + time <= self.now for pop, time, _ in mine.values())


places, attempts = st.sampled_from(QUEUES), st.sampled_from((b"", b"x", b"y"))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("give"), places, attempts, st.sets(st.integers(0, 30), max_size=5), st.integers(0, 31),
            st.integers(0, 50),
        ),
        st.tuples(st.just("release"), places, st.integers(0, 99), st.integers(1, 4)),
        st.tuples(st.just("move"), places, st.integers(0, 99), st.integers(0, 50)),
        st.tuples(st.just("passes"), st.integers(1, 40)),
    ),
    max_size=40,
)  # fmt: skip


@given(steps)
def test_it_is_what_a_table_of_messages_would_be(steps) -> None:
    model = Model()
    for name, *values in steps:
        getattr(model, name)(*values)
    model.check(OrderedQueues(model.values.get, list(model.values.items())))
    model.check(model.table)


def test_a_value_is_the_attempt_and_the_entries_side_by_side() -> None:
    value = b"\x02id" + b"".join(
        number.to_bytes(size, "little") for number, size in ((7, 8), (2**50, 8), (2**32 - 1, 4), (3, 2))
    )
    assert encode_batch(b"id", [(7, 2**50, 2**32 - 1, 3)]) == value
    assert decode_batch(value).entries == ((7, 2**50, 2**32 - 1, 3),)


async def numbered(connection: Connection, count: int, queue: int = 0, first: int = 0) -> None:
    await send(connection, *(b"%d" % number for number in range(first, first + count)), queue=queue)


async def ordered(connection: Connection, attempt: str = "", **fields: object) -> list[Message]:
    return await pop(connection, order="true", attemptId=attempt, **fields)


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.body) for message in messages]


async def test_a_queue_is_closed_while_its_messages_are_invisible(running) -> None:
    connection, other = running.connect(), running.connect()
    await numbered(connection, 5)
    await numbered(connection, 2, queue=1, first=10)
    first = await ordered(connection, queueId=0, maxMsgNums=3)
    assert numbers(first) == [0, 1, 2]
    assert await ordered(other, queueId=0) == []
    assert await pop(other, queueId=0) == [], "nor without order"
    assert numbers(await ordered(other)) == [10, 11], "other queues are not affected"
    for message in first[:2]:
        assert await ack(connection, message) == ResponseCode.SUCCESS
        assert await ordered(other, queueId=0) == []
    assert await ack(connection, first[2]) == ResponseCode.SUCCESS
    assert numbers(await ordered(other, queueId=0)) == [3, 4]


async def test_what_was_not_acknowledged_comes_again_in_order_and_the_rest_does_not(running) -> None:
    connection = running.connect()
    await numbered(connection, 6)
    messages = await ordered(connection, maxMsgNums=4)
    for message in (messages[0], messages[2]):
        assert await ack(connection, message) == ResponseCode.SUCCESS
    await expire(running)
    reply = await connection.request(popping(order="true"))
    again = [Message(stored, reply) for stored in iter_stored(reply.body)]
    assert numbers(again) == [1, 3, 4, 5]
    assert again[0].topic == TOPIC, "from where it is, not from the retry topic"
    assert reply.fields["orderCountInfo"] == "0 qo0%1 1;0 qo0%3 1;0 0 0"
    assert reply.fields["reviveQid"] == str(ORDERED_REVIVE_QUEUE) == "999"
    assert await ack(connection, messages[1]) == ResponseCode.NO_MESSAGE, "its time is over"
    assert [await ack(connection, message) for message in again] == [ResponseCode.SUCCESS] * 4
    assert await ordered(connection) == []
    assert len(feature(running).in_flight) == 0


async def test_the_same_attempt_gets_the_same_messages(running) -> None:
    connection = running.connect()
    await numbered(connection, 3)
    lost = await ordered(connection, "one")
    await numbered(connection, 2, first=3)
    assert await ordered(connection, "two") == []
    assert await ordered(connection) == [], "no attempt is no repetition"
    running.clock.advance_ms(1)
    reply = await connection.request(popping(order="true", attemptId="one"))
    again = [Message(stored, reply) for stored in iter_stored(reply.body)]
    assert numbers(again) == numbers(lost) == [0, 1, 2]
    assert reply.fields["orderCountInfo"] == "0 0 0", "it is the same delivery"
    assert await ack(connection, lost[0]) == ResponseCode.NO_MESSAGE, "under its first handle"
    assert [await ack(connection, message) for message in again] == [ResponseCode.SUCCESS] * 3
    assert numbers(await ordered(connection, "one")) == [3, 4]


async def test_the_same_attempt_gets_its_queue_before_others(running) -> None:
    connection = running.connect()
    for queue in range(4):
        await numbered(connection, 2, queue=queue, first=10 * queue)
    taken = numbers(await ordered(connection, "one", maxMsgNums=2))
    for _ in range(3):
        assert numbers(await ordered(connection, "one", maxMsgNums=2)) == taken


async def test_the_state_of_a_queue_survives_a_restart(running) -> None:
    connection = running.connect()
    await numbered(connection, 4)
    messages = await ordered(connection, "one", maxMsgNums=3)
    assert await ack(connection, messages[0]) == ResponseCode.SUCCESS
    await running.restart()
    connection = running.connect()
    assert await ordered(connection, "two") == []
    assert numbers(await ordered(connection, "one")) == [1, 2]
    await running.restart()
    connection = running.connect()
    running.clock.advance_ms(INVISIBLE_MS)
    assert numbers(await ordered(connection, "two")) == [1, 2, 3]


async def test_a_changed_time_closes_the_queue_longer_or_opens_it(running) -> None:
    connection, change = running.connect(), RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    await numbered(connection, 3)
    first, _second = await ordered(connection, maxMsgNums=2)
    reply = await connection.request(first.command(change, invisibleTime=3 * INVISIBLE_MS))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    await expire(running, 2 * INVISIBLE_MS)
    assert await ordered(connection) == []
    parts = first.handle.split()
    parts[1:3] = reply.fields["popTime"], reply.fields["invisibleTime"]
    first.handle = " ".join(parts)
    assert (await connection.request(first.command(change, invisibleTime=0))).code == ResponseCode.SUCCESS
    assert numbers(await ordered(connection)) == [0, 1, 2]


async def test_a_waiting_pop_is_woken_by_the_last_acknowledgement(running) -> None:
    connection, other = running.connect(), running.connect()
    await numbered(connection, 2)
    (message,) = await ordered(connection, maxMsgNums=1)
    waiting = asyncio.ensure_future(ordered(other, pollTime=60_000))
    while not running.broker.reading.long_polls:
        await asyncio.sleep(0)
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert numbers(await asyncio.wait_for(waiting, 10)) == [1]


async def test_a_waiting_pop_is_woken_when_the_messages_are_visible_again(running) -> None:
    connection, other = running.connect(), running.connect()
    await numbered(connection, 2)
    assert numbers(await ordered(connection, maxMsgNums=1)) == [0]
    waiting = asyncio.ensure_future(ordered(other, pollTime=60_000))
    while not running.broker.reading.long_polls:
        await asyncio.sleep(0)
    await expire(running)
    assert numbers(await asyncio.wait_for(waiting, 10)) == [0, 1]


async def test_order_begins_when_no_message_is_in_flight_without_it(running) -> None:
    connection, other = running.connect(), running.connect()
    await numbered(connection, 2)
    (message,) = await pop(connection, maxMsgNums=1)
    waiting = asyncio.ensure_future(ordered(other, pollTime=60_000))
    while not running.broker.reading.long_polls:
        await asyncio.sleep(0)
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert numbers(await asyncio.wait_for(waiting, 10)) == [1]
    await send(connection, b"2", queue=1)
    assert numbers(await pop(connection)) == [2]
    await expire(running)
    again = await ordered(connection)
    assert {message.topic: numbers([message]) for message in again} == {TOPIC: [1], retry_topic(GROUP, TOPIC): [2]}


async def test_a_notification_tells_of_a_queue_only_when_it_is_open(running) -> None:
    connection = running.connect()
    await numbered(connection, 2)
    assert numbers(await ordered(connection, "one", maxMsgNums=1)) == [0]

    async def has_message(**fields: object) -> str:
        return (await connection.request(popping(RequestCode.NOTIFICATION, order="true", **fields))).fields["hasMsg"]

    assert await has_message() == "false"
    assert await has_message(attemptId="one") == "true"
    await expire(running)
    assert await has_message() == "true"


async def test_a_group_is_switched_to_pull_only_without_messages_in_order(running) -> None:
    connection = running.connect()
    await numbered(connection, 1)
    (message,) = await ordered(connection)
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SYSTEM_BUSY
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SUCCESS


async def test_what_a_deleted_group_had_in_order_is_given_up(running) -> None:
    connection = running.connect()
    await numbered(connection, 2)
    assert len(await ordered(connection)) == 2
    running.broker.groups.groups.delete(GROUP)
    await expire(running)
    assert running.registry.values()["rocketmq_pop_expired_total{gone}"] == 2
    assert len(feature(running).in_flight) == 0


async def test_an_attempt_id_that_is_too_long_is_refused(running) -> None:
    connection = running.connect()
    await numbered(connection, 1)
    reply = await connection.request(popping(order="true", attemptId="x" * (ATTEMPT_BYTES_MAX + 1)))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert refused(running, "attempt") == 1
    assert numbers(await ordered(connection, "x" * ATTEMPT_BYTES_MAX)) == [0]


class Consumers:
    """One queue popped in order by several attempts, beside what they must get."""

    def __init__(self, seed: int, running) -> None:
        self.random, self.running = random.Random(seed), running
        self.connection = running.connect()
        self.front, self.end, self.attempt = 0, 0, ""
        self.owed: dict[int, tuple[int, int]] = {}
        """Offset -> end of the time, deliveries before."""
        self.held: dict[int, Message] = {}

    def expected(self, attempt: str, count: int) -> list[int]:
        now, owed = self.running.clock.now_ms(), sorted(self.owed)
        fresh = list(range(self.front, self.end))
        if owed and attempt and attempt == self.attempt:
            return owed[:count]
        if all(end <= now for end, _times in self.owed.values()):
            return (owed + fresh)[:count]
        return []

    async def send(self) -> None:
        count = self.random.randint(1, 4)
        await numbered(self.connection, count, first=self.end)
        self.end += count

    async def pop(self) -> None:
        attempt, count = self.random.choice(("", "a", "b")), self.random.randint(1, 4)
        wanted = self.expected(attempt, count)
        repeated = bool(attempt) and attempt == self.attempt
        reply = await self.connection.request(
            popping(order="true", attemptId=attempt, maxMsgNums=count, queueId=0, invisibleTime=100)
        )
        found = [Message(stored, reply) for stored in iter_stored(reply.body)]
        assert numbers(found) == wanted
        if not wanted:
            return
        end = self.running.clock.now_ms() + 100
        for at in wanted:
            before = self.owed.get(at)
            self.owed[at] = (end, 0 if before is None else before[1] + (not repeated))
        counts = [f"0 qo0%{at} {self.owed[at][1]}" for at in wanted if self.owed[at][1]]
        assert reply.fields["orderCountInfo"].split(";")[:-1] == counts
        self.held.update(zip(wanted, found, strict=True))
        self.front, self.attempt = max(self.front, wanted[-1] + 1), attempt

    async def acknowledge(self) -> None:
        if self.held:
            at = self.random.choice(sorted(self.held))
            code = await ack(self.connection, self.held.pop(at))
            assert code == ResponseCode.SUCCESS
            del self.owed[at]

    async def change(self) -> None:
        if self.held:
            at, invisible = self.random.choice(sorted(self.held)), self.random.choice((0, 50, 300))
            message = self.held[at]
            reply = await self.connection.request(
                message.command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=invisible)
            )
            assert reply.code == ResponseCode.SUCCESS, reply.remark
            parts = message.handle.split()
            parts[1:3] = reply.fields["popTime"], reply.fields["invisibleTime"]
            message.handle = " ".join(parts)
            self.owed[at] = (self.running.clock.now_ms() + invisible, self.owed[at][1])

    async def passes(self) -> None:
        await expire(self.running, self.random.choice((1, 60, 120)))

    async def restart(self) -> None:
        if self.random.random() < 0.2:
            await self.running.restart()
            self.connection = self.running.connect()


@pytest.mark.parametrize("seed", range(4))
async def test_any_mixture_gives_what_a_naive_consumer_expects(running, seed: int) -> None:
    consumers = Consumers(seed, running)
    await consumers.send()
    for _ in range(120):
        name = consumers.random.choice(("send", "pop", "pop", "pop", "acknowledge", "change", "passes", "restart"))
        await getattr(consumers, name)()
    assert len(feature(running).in_flight) == len(consumers.owed)


async def test_messages_that_can_no_longer_be_read_are_counted_and_block_nothing(running, monkeypatch) -> None:
    connection = running.connect()
    await numbered(connection, 4)
    assert numbers(await ordered(connection, maxMsgNums=3)) == [0, 1, 2]
    await expire(running)
    read = running.store.reading.read

    def damaged(queue_id: int, at: int, *bounds: int):
        if at < 2:
            raise UnreadableOffsets(CorruptLog(Path("segment"), 0, "zeroed"), queue_id, at, 2)
        return read(queue_id, at, *bounds)

    monkeypatch.setattr(running.store.reading, "read", damaged)
    messages = await ordered(connection)
    assert numbers(messages) == [2, 3]
    assert running.registry.values()["rocketmq_pop_expired_total{damaged}"] == 2
    assert [await ack(connection, message) for message in messages] == [ResponseCode.SUCCESS] * 2
    assert len(feature(running).in_flight) == 0
