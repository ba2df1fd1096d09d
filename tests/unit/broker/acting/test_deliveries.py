"""Messages that a replica gives by POP in the place of its master: owned here and at the next master, and none passed
over."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from broker.acting import deliveries as deliveries_module
from broker.acting import given as given_module
from broker.acting import journal as journal_module
from broker.acting.deliveries import ActingDeliveries
from broker.acting.journal import FILE_NAME, ActingJournal
from broker.acting.kinds import GIVEN, OFFSETS, POPS
from broker.app import BrokerApp
from broker.pop.handles import retry_topic
from broker.store.errors import CorruptLog, UnreadableOffsets
from broker.topics.topics import TopicSettings
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.acting.test_locks import Peer
from tests.unit.broker.acting.test_pops import CHANGE, Behind, Standing, again, asked, connected, popped
from tests.unit.broker.acting.test_replica import ElectingPair, acting, at_master, left_alone, pair, until  # noqa: F401
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
    send,
    set_mode,
)
from tests.unit.broker.pop.test_merging import left_out


class Replica(Standing):
    """What gives messages over the log of a running broker."""

    def __init__(self, running, directory: Path, authorizer: Authorizer | None = None) -> None:
        super().__init__(running, directory, authorizer)
        self.directory, self.stands = directory, True
        self._deliver(authorizer)

    def _deliver(self, authorizer: Authorizer | None = None) -> None:
        self.deliveries = ActingDeliveries(
            self.journal, self.given_here, self.pops, lambda: self.store, authorizer or Authorizer(),
            self.running.broker.tools.config, acts=lambda: self.stands, now_ms=self.running.clock.now_ms,
            log=get_logger("test"),
        )  # fmt: skip
        self.deliveries.address = ("127.0.0.1", 9)

    def again(self) -> None:
        """Start again, with the journal as it is on the disk."""
        Standing.__init__(self, self.running, self.directory)
        self._deliver()

    async def begun(self, *bodies: bytes) -> None:
        """A queue of which the group has had one message, and acknowledged it."""
        (first,) = await self.given(b"first")
        assert await ack(self.running.connect(), first) == ResponseCode.SUCCESS
        await send(self.running.connect(), *bodies, queue=0)

    async def answer(self, **fields: object) -> Command:
        peer = Peer()
        self.deliveries.pop(peer, popping(**fields))
        await until(lambda: peer.answers)
        return peer.answers[0]

    async def pop(self, **fields: object) -> list[Message]:
        reply = await self.answer(**fields)
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert reply.code == ResponseCode.SUCCESS, reply
        return [Message(stored, reply) for stored in iter_stored(reply.body)]

    async def bodies(self, **fields: object) -> list[bytes]:
        return [message.body for message in await self.pop(**fields)]

    async def pop_refused(self, **fields: object) -> Refused:
        with pytest.raises(Refused) as refused:
            await self.answer(**fields)
        return refused.value

    async def hand_over(self) -> None:
        for kind in (GIVEN, POPS):
            part = dict(self.journal.of(kind))
            reply = await self.running.connect().request(Command(kind.code, body=kind.encode(part)))
            assert reply.code == ResponseCode.SUCCESS
            await self.journal.handed_over(kind, part)


@pytest.fixture
def replica(running, tmp_path: Path) -> Replica:
    return Replica(running, tmp_path)


async def test_what_is_given_is_owned_here_and_at_the_next_master(replica: Replica) -> None:
    await replica.begun(b"1", b"2", b"3", b"4")
    first, second = await replica.pop(maxMsgNums=2)
    assert (first.body, second.body) == (b"1", b"2")
    assert [each.body for each in await replica.pop(maxMsgNums=1)] == [b"3"]
    assert (await replica.ask(first.command())).code == ResponseCode.SUCCESS
    assert await replica.refusal(first.command()) == ResponseCode.NO_MESSAGE, "it is done"
    answer = await replica.ask(second.command(CHANGE, invisibleTime=3 * INVISIBLE_MS))
    assert await replica.refusal(second.command()) == ResponseCode.NO_MESSAGE, "the handle is a former one"
    await replica.hand_over()
    assert left_out(replica.running) == 0
    assert [message.body for message in await pop(replica.running.connect())] == [b"4"]
    await expire(replica.running)
    assert {message.body for message in await pop(replica.running.connect())} == {b"3", b"4"}
    handle = again(second, answer)
    assert await ack(replica.running.connect(), second, extraInfo=handle) == ResponseCode.SUCCESS


async def test_it_goes_on_where_it_was_after_a_restart(replica: Replica) -> None:
    await replica.begun(b"1", b"2", b"3")
    (first,) = await replica.pop(maxMsgNums=1)
    replica.again()
    assert await replica.bodies() == [b"2", b"3"]
    assert (await replica.ask(first.command())).code == ResponseCode.SUCCESS


async def test_a_line_that_is_lost_is_given_again_and_no_other(replica: Replica) -> None:
    """The journal has lost the second message of three; the third one is done."""
    await replica.begun(b"1", b"2", b"3", b"4")
    (_first, _second, third) = await replica.pop(maxMsgNums=3)
    assert (await replica.ask(third.command())).code == ResponseCode.SUCCESS
    file = replica.directory / FILE_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:-3] + b"??\n" + b"".join(lines[2:]))
    replica.again()
    assert await replica.bodies() == [b"2", b"4"]
    await replica.hand_over()
    assert left_out(replica.running) == 0
    await expire(replica.running)
    assert {message.body for message in await pop(replica.running.connect())} == {b"1", b"2", b"4"}


async def test_what_does_not_match_is_passed_over(replica: Replica) -> None:
    await replica.begun()
    connection = replica.running.connect()
    for body, tag in ((b"1", "a"), (b"2", "b"), (b"3", "a"), (b"4", "b")):
        await send(connection, body, queue=0, tag=tag)
    assert await replica.bodies(exp="b", maxMsgNums=1) == [b"2"]
    assert await replica.bodies(exp="b") == [b"4"]
    assert await replica.bodies(exp="b") == []
    await replica.hand_over()
    assert await pop(connection) == [], "as at a master: the group looked at all of them"
    assert left_out(replica.running) == 0


async def test_nothing_that_matches_moves_nothing(replica: Replica) -> None:
    await replica.begun(b"1")
    assert await replica.bodies(exp="none") == []
    assert not len(replica.journal)
    assert [message.body for message in await pop(replica.running.connect())] == [b"1"]


async def test_the_retry_topic_is_popped_too(replica: Replica) -> None:
    await replica.begun(b"1")
    assert len(await pop(replica.running.connect())) == 1
    await expire(replica.running)
    (message,) = await replica.pop()
    assert (message.body, message.topic) == (b"1", retry_topic(GROUP, TOPIC))
    assert (await replica.ask(message.command())).code == ResponseCode.SUCCESS
    await replica.hand_over()
    assert left_out(replica.running) == 0
    assert feature(replica.running).status() == {"pop_in_flight": 0}
    assert await pop(replica.running.connect()) == []


async def test_a_pop_waits_until_its_time_is_over_or_there_is_room(replica: Replica) -> None:
    await replica.begun(b"1", b"2")
    limits = replica.running.broker.tools.config.limits
    object.__setattr__(limits, "pop_in_flight_max", 1)
    (first,) = await replica.pop()
    peer = Peer()
    replica.deliveries.pop(peer, popping(pollTime=60_000))
    assert not peer.answers
    await replica.ask(first.command())
    await until(lambda: peer.answers)
    assert peer.answers[0].body.count(b"2") >= 1
    assert await replica.bodies(pollTime=1) == []


async def test_who_waits_is_told_when_it_stands_in_no_more(replica: Replica) -> None:
    await replica.begun()
    peer = Peer()
    replica.deliveries.pop(peer, popping(pollTime=60_000))
    replica.deliveries.maintain()
    assert not peer.answers
    replica.stands = False
    replica.deliveries.maintain()
    assert [answer.code for answer in peer.answers] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert not len(replica.deliveries.waits)


async def test_who_does_not_stand_in_refuses(replica: Replica) -> None:
    await replica.begun(b"1")
    replica.stands = False
    assert (await replica.pop_refused()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    replica.stands, replica.store = True, None
    assert (await replica.pop_refused()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not len(replica.journal)


async def test_what_cannot_be_popped_is_refused_as_at_a_master(replica: Replica) -> None:
    await replica.begun(b"1")
    wrong = {
        ResponseCode.TOPIC_NOT_EXIST: [{"topic": "none"}],
        ResponseCode.INVALID_PARAMETER: [
            {"invisibleTime": 0}, {"maxMsgNums": 33}, {"queueId": 99}, {"topic": retry_topic(GROUP, TOPIC)},
        ],
    }  # fmt: skip
    for code, cases in wrong.items():
        for fields in cases:
            assert (await replica.pop_refused(**fields)).code == code, fields
    groups = replica.running.broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), consume_enable=False))
    assert (await replica.pop_refused()).code == ResponseCode.NO_PERMISSION
    replica.running.broker.topics.table.put(TopicSettings(name=TOPIC, permission=2))
    assert (await replica.pop_refused()).code == ResponseCode.NO_PERMISSION


async def test_a_group_that_pulls_is_given_nothing(replica: Replica) -> None:
    await replica.begun(b"1")
    assert (await set_mode(replica.running.connect(), "PULL")).code == ResponseCode.SUCCESS
    assert (await replica.pop_refused()).code == ResponseCode.ILLEGAL_OPERATION
    replica.running.broker.groups.offsets.commit([("puller", TOPIC, 0, 1)])
    assert (await replica.pop_refused(consumerGroup="puller")).code == ResponseCode.ILLEGAL_OPERATION
    replica.journal.add(OFFSETS, ("late", TOPIC, 0), (1,), lambda _refused: None)
    await until(lambda: replica.journal.of(OFFSETS))
    assert (await replica.pop_refused(consumerGroup="late")).code == ResponseCode.ILLEGAL_OPERATION


async def test_a_group_begins_at_the_replica(replica: Replica) -> None:
    """And goes on at the next master, where it is created."""
    await replica.begun(b"1", b"2")
    assert await replica.bodies(consumerGroup="new", maxMsgNums=2) == [b"first", b"1"]
    await replica.hand_over()
    assert left_out(replica.running) == 0
    assert replica.running.broker.groups.groups.modes.pops("new", TOPIC)
    given = await pop(replica.running.connect(), consumerGroup="new")
    assert [message.body for message in given] == [b"2"]


async def test_a_group_that_begins_at_the_end_gets_all_of_a_young_queue(replica: Replica) -> None:
    await replica.begun(b"1")
    assert await replica.bodies(consumerGroup="new", initMode=1) == [b"first", b"1"]
    assert await replica.bodies(initMode=1) == [b"1"], "this one has begun"


async def test_a_group_that_pulls_by_now_loses_nothing_to_what_it_was_given(replica: Replica) -> None:
    await replica.begun(b"1")
    assert await replica.bodies(consumerGroup="new") == [b"first", b"1"]
    replica.running.broker.groups.offsets.commit([("new", TOPIC, 0, 1)])
    await replica.hand_over()
    assert left_out(replica.running) == 2
    assert replica.running.broker.groups.offsets.get("new", TOPIC, 0)[0] == 1


async def test_groups_that_are_given_nothing_take_no_memory(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    await replica.begun(b"1")
    monkeypatch.setattr(given_module, "QUEUES_MAX", 3)
    monkeypatch.setattr(deliveries_module, "TURNS_MAX", 3)
    assert await replica.bodies() == [b"1"]
    for number in range(9):
        assert await replica.bodies(consumerGroup=f"g{number}", queueId=1) == []
    assert max(len(replica.given_here._queues), len(replica.deliveries._turns)) <= 4
    assert await replica.bodies() == []


@pytest.mark.parametrize("is_lost", [False, True])
async def test_it_goes_on_from_an_offset_that_may_be_lost_again(replica: Replica, is_lost: bool) -> None:
    """If it is lost, what is behind it is given again, and nothing is passed over."""
    await replica.begun(b"1", b"2")
    replica.store = Behind(replica.store)
    assert await replica.bodies(maxMsgNums=1) == [b"1"]
    if is_lost:
        replica.running.broker.groups.offsets.commit([(GROUP, TOPIC, 0, 0)])
    await replica.hand_over()
    assert left_out(replica.running) == is_lost
    given = [message.body for message in await pop(replica.running.connect())]
    assert given == ([b"first", b"1", b"2"] if is_lost else [b"2"])


async def test_what_is_in_flight_ahead_of_the_offset_is_left_to_the_master(replica: Replica) -> None:
    """An operator has set the offset back."""
    await replica.begun(b"1", b"2", b"3")
    assert len(await pop(replica.running.connect(), maxMsgNums=2)) == 2
    (last,) = await pop(replica.running.connect())
    assert await ack(replica.running.connect(), last) == ResponseCode.SUCCESS
    replica.running.broker.groups.offsets.commit([(GROUP, TOPIC, 0, 1)])
    assert await replica.bodies() == []


async def test_what_a_group_has_in_order_closes_its_queue(replica: Replica) -> None:
    await replica.begun(b"1", b"2")
    assert len(await pop(replica.running.connect(), order="true", maxMsgNums=1)) == 1
    assert await replica.bodies() == []


async def test_what_cannot_be_read_is_left_to_the_master(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    await replica.begun(b"1", b"2")
    reading = replica.store.reading
    read = reading.read

    def damaged(queue_id: int, offset: int, count: int, size: int):
        if offset == 2:
            raise UnreadableOffsets(CorruptLog(Path("0"), 7, "a flipped bit"), queue_id, 2, 3)
        return read(queue_id, offset, 1, size)

    monkeypatch.setattr(type(reading), "read", lambda _self, *wanted: damaged(*wanted))
    assert await replica.bodies() == [b"1"]
    assert await replica.bodies() == []


async def test_a_full_journal_gives_nothing_more(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for what becomes of each message."""
    await replica.begun(b"1", b"2", b"3", b"4")
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 5)
    messages = await replica.pop()
    assert [message.body for message in messages] == [b"1", b"2"]
    assert (await replica.answer()).code == ResponseCode.SYSTEM_BUSY
    assert replica.journal.refused == 1
    for message in messages:
        assert (await replica.ask(message.command())).code == ResponseCode.SUCCESS
    await replica.hand_over()
    assert replica.given_here.room == 2


async def test_what_is_not_on_the_disk_is_not_given(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    await replica.begun(b"1", b"2")

    def fails(_self, _data: bytes) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(ActingJournal, "_append", fails)
        assert (await replica.answer()).code == ResponseCode.SYSTEM_ERROR
    assert await replica.bodies() == [b"1", b"2"], "nobody has them"


async def test_two_of_one_moment_get_different_messages(replica: Replica) -> None:
    await replica.begun(b"1", b"2")
    peers = Peer(), Peer()
    for peer in peers:
        replica.deliveries.pop(peer, popping(maxMsgNums=1))
        assert not peer.answers, "not before it is on the disk"
    await until(lambda: all(peer.answers for peer in peers))
    given = {message.body for peer in peers for message in iter_stored(peer.answers[0].body)}
    assert given == {b"1", b"2"}


async def test_who_may_not_consume_gets_nothing(running, tmp_path: Path) -> None:
    replica = Replica(running, tmp_path, running.broker.tools.authorizer)
    await replica.begun(b"1")
    running.judge_by(lambda _identity, _action, _resource: False)
    assert (await replica.pop_refused()).code == ResponseCode.NO_PERMISSION
    assert not len(replica.journal)


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_acknowledged_stays_done_and_the_rest_is_given(replica: Replica, seed: int) -> None:
    """Restarts, lost lines and both kinds of givers in turn, against the set of what was acknowledged."""
    chance = random.Random(seed)
    everything = {b"%d" % number for number in range(40)}
    await replica.begun(*sorted(everything))
    done, running = set[bytes](), replica.running
    for _ in range(6):
        for _ in range(3):
            for message in await replica.pop(maxMsgNums=chance.randint(1, 5)):
                assert message.body not in done
                if chance.random() < 0.5:
                    assert (await replica.ask(message.command())).code == ResponseCode.SUCCESS
                    done.add(message.body)
            if chance.random() < 0.3:
                replica.again()
        await replica.hand_over()
        for message in await pop(running.connect(), maxMsgNums=chance.randint(1, 5)):
            assert message.body not in done
            if chance.random() < 0.5:
                assert await ack(running.connect(), message) == ResponseCode.SUCCESS
                done.add(message.body)
        if chance.random() < 0.5:
            await expire(running)
    left = set[bytes]()
    for _ in range(3):
        await expire(running)
        left |= {message.body for message in await pop(running.connect()) + await pop(running.connect())}
    assert left | done == everything
    assert not left & done


async def begun_at(app: BrokerApp) -> None:
    """A queue of which the group has had something, and then two more messages; good for another time, too."""
    connection = await connected(app)
    try:
        await send(connection, b"before", queue=0)
        while not await pop(connection, invisibleTime=600_000, pollTime=5_000):
            continue
        await send(connection, b"done", b"owned", queue=0)
    finally:
        await connection.close()


async def test_messages_are_given_while_nobody_is_the_master(pair: ElectingPair) -> None:  # noqa: F811
    await at_master(pair, begun_at)
    master = pair.master()
    assert master is not None
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))
    number, left = await left_alone(pair)
    done, owned = await popped(left, invisibleTime=600_000)
    assert (await asked(left, done.command())).code == ResponseCode.SUCCESS
    await left.stop()
    left = await pair.add(number)
    await until(acting(left).presence.acts)
    assert await popped(left) == [], "also after a restart"

    await pair.add(3 - number)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())
    assert (await at_master(pair, lambda app: asked(app, done.command()))).code == ResponseCode.NO_MESSAGE
    assert (await at_master(pair, lambda app: asked(app, owned.command()))).code == ResponseCode.SUCCESS
