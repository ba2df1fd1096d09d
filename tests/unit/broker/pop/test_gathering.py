"""Acknowledgements of one turn as one write, whatever table they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from broker.pop.gathering import AckGather
from broker.store.errors import StoreFull
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from tests.unit.broker.conftest import BrokerBench


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
