"""Who is sent back is so only with proof: a record behind the question is confirmed, or nobody knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from broker.reading.read_barrier import FULL, GIVEN_UP, LATE, PROVEN, WAIT_S, WAITERS_MAX, ReadBarrier, never, unneeded
from broker.store.errors import GivenUp, StoreFailed
from broker.store.state.state_kinds import StateChange
from remoting.client.connection import connect
from remoting.protocol.bodies.pull_body import STATUS_OFFSET_TOO_LARGE, STATUS_OK
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from tests.unit.broker.reading.test_pull import pull
from tests.unit.broker.rocketmq.test_pull import pulling
from tests.unit.broker.roles.cluster import cluster, until

RECORD = 10


class Log:
    """Confirms when it is told to."""

    def __init__(self) -> None:
        self.end = 0
        self.fails = False
        self.waiting: list[tuple[int, Callable[[Exception | None], None]]] = []

    def append_state(self, changes: Sequence[StateChange]) -> int:
        assert [change.value for change in changes] == [None], "changes nothing, and is taken on a full disk too"
        if self.fails:
            raise StoreFailed("failed")
        self.end += RECORD
        return self.end

    def when_confirmed(self, position: int, callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append((position, callback))

    def confirm(self, error: Exception | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for position, callback in waiting:
            assert position <= self.end
            callback(error)


class Rig:
    """A barrier, and what those who asked were told, by their names."""

    def __init__(self) -> None:
        self.log = Log()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.barrier = ReadBarrier(self.log, lambda seconds, call: self.timers.append((seconds, call)), self._count)
        self.outcomes: Counter[str] = Counter()
        self.told: list[tuple[str, bool]] = []

    def ask(self, *names: str) -> None:
        for name in names:
            self.barrier.wait(partial(self._told, name))

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    def _told(self, name: str, is_proven: bool) -> None:
        self.told.append((name, is_proven))


def test_a_record_behind_the_question_proves_it_and_one_serves_all_who_asked_before() -> None:
    rig = Rig()
    rig.ask("first", "second", "third")
    assert (rig.log.end, rig.told) == (RECORD, [])
    rig.log.confirm()
    assert (rig.log.end, rig.told) == (2 * RECORD, [("first", True)]), "the others asked after its record"
    rig.log.confirm()
    assert (rig.log.end, rig.told[1:]) == (2 * RECORD, [("second", True), ("third", True)])
    rig.ask("fourth")
    assert rig.log.end == 3 * RECORD


def test_nobody_waits_longer_than_it_takes_and_is_told_once() -> None:
    rig = Rig()
    rig.ask("first", "second")
    assert [seconds for seconds, _call in rig.timers] == [WAIT_S, WAIT_S]
    rig.timers[1][1]()
    assert rig.told == [("second", False)]
    rig.log.confirm()
    rig.log.confirm()
    rig.timers[0][1]()
    assert rig.told == [("second", False), ("first", True)]
    assert rig.outcomes == {LATE: 1, PROVEN: 1}


def test_a_master_that_gives_up_proves_nothing_and_appends_nothing_more() -> None:
    rig = Rig()
    rig.ask("first", "second")
    rig.log.confirm(GivenUp("no master any more", {}))
    assert (rig.log.end, rig.told) == (RECORD, [("first", False), ("second", False)])
    rig.log.fails = True
    rig.ask("third")
    assert rig.told[2:] == [("third", False)]
    assert rig.outcomes == {GIVEN_UP: 3}


def test_more_than_may_wait_are_told_at_once() -> None:
    rig = Rig()
    rig.ask(*(str(number) for number in range(WAITERS_MAX)))
    assert not rig.told
    rig.ask("one more")
    assert rig.told == [("one more", False)]
    assert rig.outcomes == {FULL: 1}


def test_where_there_is_nothing_to_prove_and_where_nothing_can_be() -> None:
    told: list[bool] = []
    unneeded(told.append)
    never(told.append)
    assert told == [True, False]


async def test_a_master_that_nobody_follows_sends_no_reader_back(tmp_path: Path) -> None:
    """Another one may have shown the reader more; once a replica has acknowledged the record, none has."""
    async with cluster(tmp_path, 2, in_sync_min=2, absence_limit_ms=60_000) as group:
        assert await group.publish(b"1") == 0
        master = group.master()
        number, other = next(each for each in group.brokers.items() if each[1] is not master)
        queue = master._member.store.queues.find(names.light_queue_name(b"plant/1"))
        await other._member.client.stop()
        connection = await connect("127.0.0.1", master.port)
        topic = names.light_queue_name(b"plant/1").decode()
        for wait_ms in (0, 50):
            waits = await connection.request(pulling(topic, 5, wait_ms=wait_ms))
            assert (waits.code, waits.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "5")
        (empty,) = await pull(connection, (queue, 5, 10, 9_999))
        assert (empty.status, empty.count, empty.next_offset, empty.max_offset) == (STATUS_OK, 0, 5, 1)
        counted = master._member.serving.broker.reading._proofs.child
        assert (counted(LATE).value, counted(PROVEN).value) == (3, 0)
        await other.stop()
        await group.add(number)
        await until(lambda: master._member.store.confirm_position == master._member.store.end_position)
        moved = await connection.request(pulling(topic, 5, wait_ms=20_000))
        assert (moved.code, moved.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
        nowhere = await connection.request(pulling(names.light_queue_name(b"plant/9").decode(), 5))
        assert (nowhere.code, nowhere.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
        (beyond,) = await pull(connection, (queue, 5, 10, 9_999))
        assert (beyond.status, beyond.next_offset) == (STATUS_OFFSET_TOO_LARGE, 1)
        await connection.close()
