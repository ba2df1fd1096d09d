"""POP while a replica stands in: what is acknowledged there is done, for the next master too."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from broker.acting import journal as journal_module
from broker.acting.given import GivenMessages
from broker.acting.journal import FILE_NAME, ActingJournal
from broker.acting.kinds import POPS
from broker.acting.pops import ActingPops
from broker.app import BrokerApp
from remoting.client.connection import Connection, dial
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.authorizer import Authorizer
from runtime.logs import get_logger
from tests.unit.broker.acting.test_locks import Peer
from tests.unit.broker.acting.test_replica import (
    ElectingPair,
    acting,
    at_master,
    left_alone,
    pair,  # noqa: F401
    until,
)
from tests.unit.broker.pop.client import GROUP, INVISIBLE_MS, TOPIC, Message, expire, feature, pop, send

CHANGE, BATCH = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.BATCH_ACK_MESSAGE


def again(message: Message, answer: Command) -> str:
    """The handle after the time was changed."""
    parts = message.handle.split()
    return " ".join([parts[0], answer.fields["popTime"], answer.fields["invisibleTime"], *parts[3:]])


def batch(*messages: Message, bits: int | None = None, **fields: object) -> Command:
    """All of these messages of one queue, given together."""
    first = min(message.stored.queue_offset for message in messages)
    _start, pop_ms, invisible_ms, *_rest = messages[0].handle.split()
    wanted = sum(1 << message.stored.queue_offset - first for message in messages) if bits is None else bits
    ack = {
        "c": GROUP, "t": TOPIC, "r": "0", "so": first, "q": messages[0].stored.queue_id, "pt": pop_ms,
        "it": invisible_ms, "b": base64.b64encode(wanted.to_bytes(2, "little")).decode(),
    }  # fmt: skip
    return Command(BATCH, body=json.dumps({"acks": [ack | fields]}).encode())


class Standing:
    """What stands in over the log of a running broker."""

    def __init__(self, running, directory: Path, authorizer: Authorizer | None = None) -> None:
        self.running, self.store = running, running.store
        self.journal = ActingJournal(directory, get_logger("test"))
        self.given_here = GivenMessages(self.journal)
        self.pops = ActingPops(
            self.journal, self.given_here, lambda: self.store, authorizer or Authorizer(), broker_name="broker-a",
            now_ms=running.clock.now_ms,
        )  # fmt: skip

    async def given(self, *bodies: bytes, **fields: object) -> list[Message]:
        """Messages of one queue that the master gave, in their order."""
        await send(self.running.connect(), *bodies, queue=0)
        found = await pop(self.running.connect(), **fields)
        return sorted(found, key=lambda message: message.stored.queue_offset)

    async def ask(self, command: Command) -> Command:
        peer = Peer()
        handler = self.pops.find(command)
        assert handler is not None
        handler(peer, command)
        await until(lambda: peer.answers)
        return peer.answers[0]

    async def refusal(self, command: Command) -> int:
        with pytest.raises(Refused) as refused:
            await self.ask(command)
        return refused.value.code

    async def hand_over(self) -> None:
        entries = POPS.encode(self.journal.of(POPS))
        reply = await self.running.connect().request(Command(RequestCode.MERGE_POPS, body=entries))
        assert reply.code == ResponseCode.SUCCESS


class Behind:
    """The log of a replica that does not know yet what is confirmed."""

    def __init__(self, store) -> None:
        self._store, self.confirm_position = store, 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)


@pytest.fixture
def standing(running, tmp_path: Path) -> Standing:
    return Standing(running, tmp_path)


@pytest.mark.parametrize("order", ["false", "true"])
async def test_what_is_acknowledged_is_done(standing: Standing, order: str) -> None:
    first, second, third = await standing.given(b"1", b"2", b"3", order=order)
    assert (await standing.ask(first.command())).code == ResponseCode.SUCCESS
    assert await standing.refusal(first.command()) == ResponseCode.NO_MESSAGE, "it is done"
    answer = await standing.ask(second.command(CHANGE, invisibleTime=3 * INVISIBLE_MS))
    assert await standing.refusal(second.command()) == ResponseCode.NO_MESSAGE, "the handle is a former one"
    assert (await standing.ask(second.command(extraInfo=again(second, answer)))).code == ResponseCode.SUCCESS
    await standing.hand_over()
    await expire(standing.running)
    assert [message.body for message in await pop(standing.running.connect(), order=order)] == [third.body]


async def test_a_time_that_was_changed_is_the_masters_too(standing: Standing) -> None:
    """However often, within one millisecond."""
    (message,) = await standing.given(b"1")
    answer = await standing.ask(message.command(CHANGE, invisibleTime=5))
    handle = again(message, answer)
    answer = await standing.ask(message.command(CHANGE, invisibleTime=3 * INVISIBLE_MS, extraInfo=handle))
    assert int(answer.fields["popTime"]) > int(handle.split()[1]), "two ownerships differ"
    await standing.hand_over()
    await expire(standing.running)
    assert await pop(standing.running.connect()) == []
    reply = await standing.running.connect().request(message.command(extraInfo=again(message, answer)))
    assert reply.code == ResponseCode.SUCCESS


async def test_many_are_acknowledged_at_once(standing: Standing) -> None:
    messages = await standing.given(b"1", b"2", b"3")
    twice = Command(BATCH, body=json.dumps({"acks": 2 * json.loads(batch(messages[0]).body)["acks"]}).encode())
    reply = await standing.ask(twice)
    assert (reply.code, json.loads(reply.body)) == (ResponseCode.NO_MESSAGE, [[1, 0]])
    assert (await standing.ask(batch(messages[2]))).code == ResponseCode.SUCCESS
    reply = await standing.ask(batch(*messages, bits=0b1111))
    assert (reply.code, json.loads(reply.body)) == (ResponseCode.NO_MESSAGE, [[0, 0], [0, 2], [0, 3]])
    await standing.hand_over()
    assert feature(standing.running).status() == {"pop_in_flight": 0}
    with pytest.raises(Refused) as refused:
        await standing.ask(batch(*messages, q=99))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


async def test_two_of_one_moment_do_not_both_have_it(standing: Standing) -> None:
    (message,) = await standing.given(b"1")
    peer = Peer()
    standing.pops.acknowledge(peer, message.command())
    assert not peer.answers, "not before it is on the disk"
    assert await standing.refusal(message.command()) == ResponseCode.NO_MESSAGE
    await until(lambda: peer.answers)


@pytest.mark.parametrize("order", ["false", "true"])
async def test_a_handle_proves_that_its_pop_is_confirmed(standing: Standing, order: str) -> None:
    """The master died before the replica heard of that."""
    (message,) = await standing.given(b"1", order=order)
    standing.store = Behind(standing.store)
    assert (await standing.ask(message.command())).code == ResponseCode.SUCCESS
    await standing.hand_over()
    assert feature(standing.running).status() == {"pop_in_flight": 0}


async def test_what_names_nothing_is_refused(standing: Standing) -> None:
    (message,) = await standing.given(b"1")
    strange = {
        ResponseCode.NO_MESSAGE: [{"offset": 7}, {"offset": -1}, {"offset": 2**62}, {"consumerGroup": "other"},
                                  {"extraInfo": message.handle.replace("broker-a", "broker-b")}],
        ResponseCode.TOPIC_NOT_EXIST: [{"topic": "none"}],
        ResponseCode.MESSAGE_ILLEGAL: [{"queueId": 99}, {"queueId": -1}],
        ResponseCode.INVALID_PARAMETER: [{"extraInfo": "x"}],
    }  # fmt: skip
    for code, cases in strange.items():
        for fields in cases:
            assert await standing.refusal(message.command(**fields)) == code, fields
    assert await standing.refusal(message.command(CHANGE, invisibleTime=-1)) == ResponseCode.INVALID_PARAMETER
    assert standing.pops.find(message.command(liteTopic="l")) is None
    standing.store = None
    assert await standing.refusal(message.command()) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not len(standing.journal)


async def test_what_the_log_gave_anew_is_owned_anew(standing: Standing) -> None:
    """A master was there in between that did not get the journal."""
    (message,) = await standing.given(b"1", invisibleTime=INVISIBLE_MS)
    await standing.ask(message.command())
    standing.running.clock.advance_ms(5)
    reply = await standing.running.connect().request(message.command(CHANGE, invisibleTime=INVISIBLE_MS))
    anew = message.command(extraInfo=again(message, reply))
    assert (await standing.ask(anew)).code == ResponseCode.SUCCESS
    assert await standing.refusal(anew) == ResponseCode.NO_MESSAGE
    await standing.hand_over()
    assert feature(standing.running).status() == {"pop_in_flight": 0}


async def test_a_full_journal_says_so(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = await standing.given(b"1", b"2", b"3")
    monkeypatch.setattr(journal_module, "ENTRIES_MAX", 2)
    assert (await standing.ask(batch(*messages))).code == ResponseCode.SYSTEM_BUSY
    await until(lambda: len(standing.journal) == 2)
    assert (await standing.ask(messages[2].command())).code == ResponseCode.SYSTEM_BUSY


async def test_a_oneway_acknowledgement_is_kept(standing: Standing) -> None:
    (message,) = await standing.given(b"1")
    command, peer = message.command(), Peer()
    command.flag |= FLAG_ONEWAY
    standing.pops.acknowledge(peer, command)
    await until(lambda: len(standing.journal))
    assert not peer.answers


async def test_who_may_not_consume_acknowledges_nothing(running, tmp_path: Path) -> None:
    standing = Standing(running, tmp_path, running.broker.tools.authorizer)
    (message,) = await standing.given(b"1")
    running.judge_by(lambda _identity, _action, _resource: False)
    assert await standing.refusal(message.command()) == ResponseCode.NO_PERMISSION
    assert await standing.refusal(batch(message)) == ResponseCode.NO_PERMISSION


async def connected(app: BrokerApp) -> Connection:
    return await dial(f"127.0.0.1:{app.port}")


async def asked(app: BrokerApp, command: Command) -> Command:
    connection = await connected(app)
    try:
        return await connection.request(command, 5_000)
    finally:
        await connection.close()


async def popped(app: BrokerApp, **fields: object) -> list[Message]:
    connection = await connected(app)
    try:
        return await pop(connection, **fields)
    finally:
        await connection.close()


async def given_by(pair: ElectingPair, *bodies: bytes) -> dict[bytes, Message]:  # noqa: F811
    """Messages that the master gave, which both brokers know to be confirmed."""
    master = pair.master()
    assert master is not None
    connection = await connected(master)
    await send(connection, *bodies)
    found = dict[bytes, Message]()
    while len(found) < len(bodies):
        found |= {message.body: message for message in await pop(connection, invisibleTime=60_000, pollTime=5_000)}
    await connection.close()
    end = master._member.store.end_position
    await until(lambda: all(app._member.log_state().confirm >= end for app in pair.brokers.values()))
    return found


async def test_an_acknowledgement_survives_the_masters_return(pair: ElectingPair) -> None:  # noqa: F811
    found = await given_by(pair, b"acknowledged", b"shortened", b"kept")
    number, left = await left_alone(pair)
    assert (await asked(left, found[b"acknowledged"].command())).code == ResponseCode.SUCCESS
    answer = await asked(left, found[b"shortened"].command(CHANGE, invisibleTime=1))
    assert answer.code == ResponseCode.SUCCESS
    await left.stop()
    left = await pair.add(number)
    await until(acting(left).presence.acts)
    assert (await asked(left, found[b"acknowledged"].command())).code == ResponseCode.NO_MESSAGE, "as before"

    await pair.add(3 - number)
    await until(pair.master)
    await until(lambda: not (pair.directory / f"broker-{number}" / FILE_NAME).exists())

    async def given_again(master: BrokerApp) -> list[bytes]:
        while not (messages := await popped(master, pollTime=5_000)):
            continue
        return [message.body for message in messages]

    assert await at_master(pair, given_again) == [b"shortened"]
    assert (await at_master(pair, lambda master: asked(master, found[b"kept"].command()))).code == ResponseCode.SUCCESS
    assert await at_master(pair, lambda master: popped(master, maxMsgNums=1)) == []
