"""Acknowledgements of one turn as one write, whatever table they belong to; and requests for messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from broker.pop.gathering import AckGather
from broker.store.errors import StoreFull
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.pop.client import GROUP, TOPIC, Message, ack, feature, pop, popping, send


class Table:
    """What is in flight of two queues, and the writes it got."""

    def __init__(self) -> None:
        self.gathered: dict[tuple[str, int], set[int]] = {}
        self.write_gathered: Callable[[], None] = self.gathered.clear
        self.writes: list[dict[tuple[str, bytes, int], list[int]]] = []
        self.is_full = False

    def write(self, taken: Mapping[tuple[str, bytes, int], list[int]]) -> int:
        assert not self.gathered, "the table may be used"
        if self.is_full:
            raise StoreFull("no room")
        self.writes.append(dict(taken))
        return 0


class Asker:
    """A peer that keeps its answers."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def send(self, command: Command) -> None:
        self.codes.append(command.code)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def gather(running: BrokerBench, table: Table) -> AckGather[bytes]:
    counter = running.registry.counter("rocketmq_test_gathered_total", "Of this test")
    return AckGather(running.broker.tools, table, write=table.write, acknowledged=counter)


async def test_what_is_taken_in_a_turn_is_written_at_its_end_by_queue(
    running: BrokerBench, table: Table, gather: AckGather[bytes]
) -> None:
    peer = Asker()
    for queue, offset in ((1, 5), (2, 7), (1, 6)):
        gather.take("g", b"q%d" % queue, queue, (offset,))
        gather.answer(peer, Command(1), Command(0))  # type: ignore[arg-type]
    assert (table.writes, table.gathered) == ([], {("g", 1): {5, 6}, ("g", 2): {7}})
    await running.settle()
    assert table.writes == [{("g", b"q1", 1): [5, 6], ("g", b"q2", 2): [7]}]
    assert peer.codes == [0, 0, 0]
    assert running.registry.values()["rocketmq_test_gathered_total"] == 3


async def test_a_use_of_the_table_writes_at_once_and_the_end_of_the_turn_nothing_more(
    running: BrokerBench, table: Table, gather: AckGather[bytes]
) -> None:
    gather.take("g", b"q1", 1, (5,))
    table.write_gathered()
    assert table.writes == [{("g", b"q1", 1): [5]}]
    await running.settle()
    assert len(table.writes) == 1


async def test_a_store_that_fails_refuses_all_but_one_way_requests(
    running: BrokerBench, table: Table, gather: AckGather[bytes]
) -> None:
    peer, table.is_full = Asker(), True
    for flag in (0, FLAG_ONEWAY, 0):
        gather.take("g", b"q1", 1, (5,))
        gather.answer(peer, Command(1, flag=flag), Command(0))  # type: ignore[arg-type]
    await running.settle()
    assert len(peer.codes) == 2
    assert 0 not in peer.codes
    assert running.registry.values().get("rocketmq_test_gathered_total", 0) == 0


class Appends:
    """Counts the records of state that a store gets."""

    def __init__(self, running: BrokerBench, patch: pytest.MonkeyPatch) -> None:
        self.changes: list[int] = []
        self.is_full = False
        self._append = running.store.append_state
        patch.setattr(running.store, "append_state", self.append)

    def append(self, changes: list[object]) -> int:
        if self.is_full:
            raise StoreFull("no room")
        self.changes.append(len(changes))
        return self._append(changes)  # type: ignore[arg-type]


async def several(connection, count: int, **fields: object) -> list[list[Message]]:
    return await asyncio.gather(*(pop(connection, **fields) for _ in range(count)))


async def test_the_pops_of_a_turn_get_different_messages_by_one_record(
    running: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(40)), queue=0)
    assert await pop(connection, maxMsgNums=1)  # the group is new no longer
    appends = Appends(running, monkeypatch)
    found = await several(connection, 42, maxMsgNums=1)
    assert [message.body for messages in found for message in messages] == [b"%d" % number for number in range(1, 40)]
    assert appends.changes == [3], "two blocks of check-points and an offset"
    assert len(feature(running).in_flight) == 40
    assert [await ack(connection, message) for messages in found for message in messages] == [0] * 39
    await running.restart()
    assert len(feature(running).in_flight) == 1
    assert await pop(running.connect()) == []


async def test_in_order_the_second_pop_of_a_turn_finds_the_queue_closed(
    running: BrokerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    await pop(connection, maxMsgNums=1, order="true", attemptId="a")
    first = await pop(connection, maxMsgNums=1, order="true", attemptId="a")
    assert await ack(connection, *first) == 0
    appends = Appends(running, monkeypatch)
    found = await asyncio.gather(
        *(pop(connection, maxMsgNums=1, order="true", attemptId=attempt) for attempt in ("b", "c", "b"))
    )
    assert [[message.body for message in messages] for messages in found] == [[b"2"], [], [b"2"]]
    assert len(appends.changes) == 1
    assert len(feature(running).in_flight) == 1


@pytest.mark.parametrize("order", ["false", "true"])
async def test_pops_that_cannot_be_written_are_refused_and_change_nothing(
    running: BrokerBench, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    assert await ack(connection, *await pop(connection, order=order)) == 0
    await send(connection, b"2", b"3", queue=0)
    given = running.broker.tools.metrics.messages_out.value
    with monkeypatch.context() as patch:
        appends = Appends(running, patch)
        appends.is_full = True
        asked = [popping(maxMsgNums=1, order=order, attemptId=str(number)) for number in range(2)]
        codes = [answer.code for answer in await asyncio.gather(*map(connection.request, asked))]
    assert set(codes) <= {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.POLLING_TIMEOUT}
    assert codes[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (len(feature(running).in_flight), running.broker.tools.metrics.messages_out.value) == (0, given)
    assert [message.body for message in await pop(connection, order=order)] == [b"2", b"3"]


async def test_a_pop_that_waits_when_its_topic_is_deleted_is_refused_alone(running: BrokerBench) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", queue=0)
    assert len(await pop(connection, maxMsgNums=1)) == 1
    deleting = Command(215, fields={"topic": TOPIC})
    await send(connection, b"3", topic="others")
    waiting = asyncio.ensure_future(connection.request(popping(pollTime=300, queueId=3)))
    await asyncio.sleep(0)
    assert (await connection.request(deleting)).code == ResponseCode.SUCCESS
    other = await pop(connection, topic="others", consumerGroup=GROUP)
    assert [message.body for message in other] == [b"3"]
    assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
