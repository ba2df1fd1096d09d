"""Transactions from the half message to the end of it, over a broker on a real store."""

from __future__ import annotations

import json

import pytest

from broker.store.placed import Placed
from broker.transactions.transactions import EXPIRED_TOPIC, HALF_QUEUE
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.stored_message import iter_stored

GROUP = "payers"
COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
HALF = {b"TRAN_MSG": b"true", b"PGROUP": GROUP.encode(), b"UNIQ_KEY": b"7F0001", b"own": b"value"}


def sending(topic: str = "orders", *, code: int = RequestCode.SEND_MESSAGE_V2, **extra: bytes) -> Command:
    """A half message as RocketMQ's producers send it."""
    properties = HALF | {key.encode(): value for key, value in extra.items()}
    text = encode_properties(properties.items()).decode()
    fields = {"a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "4", "g": "5", "h": "0", "i": text}
    return Command(code, fields=fields, body=b"paid")


def ending(sent: Command, outcome: int = COMMIT, **fields: object) -> Command:
    """The producer's decision on a message."""
    said = {
        "topic": "orders",
        "producerGroup": GROUP,
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": int(sent.fields["msgId"][16:], 16),
        "commitOrRollback": outcome,
        "msgId": sent.fields["transactionId"],
    }
    return Command(RequestCode.END_TRANSACTION, fields={name: str(value) for name, value in (said | fields).items()})


async def prepare(connection: Connection, topic: str = "orders") -> Command:
    """The broker's answer to a half message."""
    sent = await connection.request(sending(topic))
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return sent


async def stored(connection: Connection, topic: str = "orders", queue: int = 1) -> list:
    """What a consumer finds."""
    fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue), "queueOffset": "0", "sysFlag": "4",
              "maxMsgNums": "32", "subscription": "*"}  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    return list(iter_stored(reply.body)) if reply.code == 0 else []


async def producer(running) -> tuple[Connection, list[Command]]:
    """A connected producer of the group, and the checks it gets."""
    connection = running.connect()
    asked: list[Command] = []
    connection.on_push(asked.append)
    body = {"clientID": "payer@1", "producerDataSet": [{"groupName": GROUP}]}
    reply = await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    assert reply.code == ResponseCode.SUCCESS
    return connection, asked


async def test_nothing_is_visible_before_the_commit_and_the_message_as_sent_after_it(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    assert sent.fields["transactionId"] == "7F0001"
    assert await stored(connection) == []
    assert running.broker.transactions.status() == {"transactions": 0}, "taken up when it is looked for"
    reply = await connection.request(ending(sent))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    (message,) = await stored(connection)
    assert (message.body, message.born_ms, message.sys_flag & 0xC) == (b"paid", 5, 8)
    shown = dict(message.properties)
    assert (shown[b"own"], shown[b"UNIQ_KEY"]) == (b"value", b"7F0001")
    assert (shown[b"TRAN_MSG"], shown[b"__transactionId__"]) == (b"true", b"7F0001")


async def test_a_roll_back_leaves_nothing_and_an_unknown_outcome_leaves_it_open(running) -> None:
    connection = running.connect()
    first, second = await prepare(connection), await prepare(connection)
    assert (await connection.request(ending(first, ROLL_BACK))).code == ResponseCode.SUCCESS
    assert (await connection.request(ending(second, UNKNOWN))).code == ResponseCode.SUCCESS
    assert await stored(connection) == []
    assert running.broker.transactions.status() == {"transactions": 1}
    assert (await connection.request(ending(second, COMMIT))).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 1


async def test_a_one_way_decision_counts_and_is_not_answered(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    decision = ending(sent)
    decision.flag |= FLAG_ONEWAY
    connection.oneway(decision)
    await connection.request(ending(sent, UNKNOWN))
    await running.settle()
    assert len(await stored(connection)) == 1


async def test_the_same_decision_twice_is_one_and_another_one_is_refused(running) -> None:
    connection = running.connect()
    open_, sent = await prepare(connection), await prepare(connection)
    for _ in range(2):
        assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS
    reply = await connection.request(ending(sent, ROLL_BACK))
    assert (reply.code, "committed before" in reply.remark) == (ResponseCode.TRANSACTION_FAILED, True)
    assert running.registry.values()["rocketmq_transaction_decisions_refused_total"] == 1
    assert len(await stored(connection)) == 1
    assert (await connection.request(ending(open_))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producerGroup": "thieves"}, ResponseCode.TRANSACTION_STATE_GROUP_WRONG),
        ({"commitLogOffset": 8}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 5}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": -1}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 2**62}, ResponseCode.SYSTEM_ERROR),
        ({"tranStateTableOffset": 2**70}, ResponseCode.INVALID_PARAMETER),
        ({"commitOrRollback": 4}, ResponseCode.INVALID_PARAMETER),
        ({"commitLogOffset": "x"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_a_decision_that_matches_nothing_is_refused_and_the_transaction_stays_open(running, fields, code) -> None:
    connection = running.connect()
    sent = await prepare(connection)
    assert (await connection.request(ending(sent, **fields))).code == code
    assert await stored(connection) == []
    assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (sending(DELAY=b"3"), "delayed"),
        (sending(TRAN_MSG=b"false"), "sysFlag"),
        (sending(PGROUP=b""), "PGROUP"),
        (sending(code=RequestCode.SEND_BATCH_MESSAGE), "batch"),
    ],
)
async def test_half_messages_that_cannot_be_kept_are_refused(running, command, named) -> None:
    reply = await running.connect().request(command)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert named in reply.remark


async def test_open_transactions_survive_a_restart_and_ended_ones_stay_ended(running) -> None:
    connection = running.connect()
    first, second, third = [await prepare(connection) for _ in range(3)]
    assert (await connection.request(ending(second))).code == ResponseCode.SUCCESS
    await running.restart()
    connection = running.connect()
    assert (await connection.request(ending(second))).code == ResponseCode.SUCCESS, "as it was decided"
    assert (await connection.request(ending(first))).code == ResponseCode.SUCCESS
    assert (await connection.request(ending(third, ROLL_BACK))).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 2
    await running.restart()
    assert running.broker.transactions.maintain(running.clock.now_ms()) == {"transaction_expired": 0}
    assert running.broker.transactions.status() == {"transactions": 0}


async def test_a_producer_is_asked_and_its_answer_commits(running) -> None:
    connection, asked = await producer(running)
    sent = await prepare(connection)
    feature, config = running.broker.transactions, running.config
    feature.maintain(running.clock.now_ms())
    assert asked == []
    running.clock.advance_ms(config.transaction_check_after_ms)
    feature.maintain(running.clock.now_ms())
    await running.settle()
    (question,) = asked
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert question.is_oneway
    assert question.fields["transactionId"] == "7F0001"
    (shown,) = iter_stored(question.body)
    assert (shown.body, shown.topic, shown.queue_id) == (b"paid", b"orders", 1)
    assert dict(shown.properties)[b"PGROUP"] == GROUP.encode()
    assert dict(shown.properties)[b"TRANSACTION_CHECK_TIMES"] == b"1"
    answer = ending(sent, **{key: question.fields[key] for key in ("tranStateTableOffset", "commitLogOffset")})
    assert (await connection.request(answer)).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 1
    running.clock.advance_ms(config.transaction_check_interval_ms)
    feature.maintain(running.clock.now_ms())
    assert len(asked) == 1


@pytest.mark.parametrize(("wanted", "after_ms"), [(b"60", 60_000), (b"0", 0), (b"soon", None), (b"9" * 10, None)])
async def test_a_message_names_when_its_producer_is_asked_first(running, wanted: bytes, after_ms: int | None) -> None:
    connection, asked = await producer(running)
    sent = await connection.request(sending(CHECK_IMMUNITY_TIME_IN_SECONDS=wanted))
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    feature = running.broker.transactions
    after_ms = running.config.transaction_check_after_ms if after_ms is None else after_ms
    running.clock.advance_ms(max(0, after_ms - 1))
    feature.maintain(running.clock.now_ms())
    await running.settle()
    assert len(asked) == (after_ms == 0)
    running.clock.advance_ms(1)
    feature.maintain(running.clock.now_ms())
    await running.settle()
    assert len(asked) == 1


async def test_what_is_never_decided_goes_to_the_topic_for_operators(running) -> None:
    connection, asked = await producer(running)
    await prepare(connection)
    feature, config = running.broker.transactions, running.config
    running.clock.advance_ms(config.transaction_check_after_ms)
    expired = 0
    for _ in range(config.transaction_checks_max + 1):
        expired += feature.maintain(running.clock.now_ms())["transaction_expired"]
        running.clock.advance_ms(config.transaction_check_interval_ms)
    await running.settle()
    assert (len(asked), expired) == (config.transaction_checks_max, 1)
    (message,) = await stored(connection, EXPIRED_TOPIC, 0)
    assert message.body == b"paid"
    assert dict(message.properties)[b"REAL_TOPIC"] == b"orders"
    assert await stored(connection) == []


async def test_without_a_producer_only_age_ends_a_transaction(running) -> None:
    connection = running.connect()
    await prepare(connection)
    feature, config = running.broker.transactions, running.config
    feature.maintain(running.clock.now_ms())
    for _ in range(config.transaction_checks_max + 2):
        running.clock.advance_ms(config.transaction_check_interval_ms)
        assert feature.maintain(running.clock.now_ms()) == {"transaction_expired": 0}
    running.clock.advance_ms(config.transaction_age_s_max * 1_000)
    assert feature.maintain(running.clock.now_ms()) == {"transaction_expired": 1}


async def test_a_copy_that_retention_made_is_found_by_the_offset_its_producer_knows(running) -> None:
    connection = running.connect()
    sent, other = await prepare(connection), await prepare(connection)
    messages, store = running.broker.transactions.messages, running.store
    messages.halves.take_up()

    def append(placed: Placed, changes) -> int:
        return store.append(placed, changes=changes).end_position

    while not messages.keep_from(store.end_position, append):
        await running.settle()
        messages.halves.take_up()
        if messages.table.oldest().offset >= 2:
            break
    await running.restart()
    connection = running.connect()
    assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS
    assert (await connection.request(ending(sent, ROLL_BACK))).code == ResponseCode.TRANSACTION_FAILED
    assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS
    assert (await connection.request(ending(other, ROLL_BACK))).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 1


async def test_half_messages_are_hidden_from_every_reader(running) -> None:
    connection = running.connect()
    await prepare(connection)
    queue_id = running.store.queues.open(HALF_QUEUE)
    assert queue_id in running.broker.topics.hidden


async def test_a_producer_without_the_right_to_publish_decides_nothing(running) -> None:
    connection = running.connect()
    sent = await prepare(connection)

    running.judge_by(lambda _identity, _action, resource: resource != "orders")
    assert (await connection.request(ending(sent, topic="mine"))).code == ResponseCode.NO_PERMISSION
    assert running.broker.transactions.status() == {"transactions": 1}


async def test_a_copy_of_a_committed_message_never_becomes_a_half_message(running) -> None:
    connection = running.connect()
    copied = sending(__transactionId__=b"0" * 32)
    refused = await connection.request(Command(copied.code, fields=copied.fields | {"f": "0"}, body=copied.body))
    assert (refused.code, "TRAN_MSG" in refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert (await connection.request(copied)).code == ResponseCode.SUCCESS, "a half message that is sent again"


async def test_a_decision_about_what_is_not_confirmed_yet_is_to_be_repeated(running) -> None:
    sent = await prepare(running.connect())
    await running.take_over()
    connection = running.connect()
    assert (await connection.request(ending(sent))).code == ResponseCode.SYSTEM_BUSY
    running.confirm()
    assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS
    assert len(await stored(connection)) == 1


async def test_a_transaction_whose_message_is_damaged_ends_when_retention_takes_it(running) -> None:
    """Another copy of the log may have it until then."""
    await prepare(running.connect())
    feature, config, store = running.broker.transactions, running.config, running.store
    feature.maintain(running.clock.now_ms())
    running.damage(store.queues.find(HALF_QUEUE), 0)
    running.clock.advance_ms(config.transaction_age_s_max * 1_000)
    for _ in range(2):
        running.clock.advance_ms(config.transaction_check_interval_ms)
        assert feature.maintain(running.clock.now_ms()) == {"transaction_expired": 0}
    assert feature.status() == {"transactions": 1}

    def append(placed: Placed, changes) -> int:
        return store.append(placed, changes=changes).end_position

    assert not feature.messages.keep_from(store.end_position, append)
    assert feature.messages.keep_from(store.end_position, append)
    assert (feature.status(), feature.messages.counts[b"X"]) == ({"transactions": 0}, 1)


async def test_retention_keeps_half_messages_that_were_not_taken_up_yet(running) -> None:
    sent = await prepare(running.connect())
    await running.restart()
    messages, store = running.broker.transactions.messages, running.store

    def append(placed: Placed, changes) -> int:
        return store.append(placed, changes=changes).end_position

    target = store.end_position
    while not messages.keep_from(target, append):
        await running.settle()
    assert messages.table.present(0) == 1, "it was copied"
    assert (await running.connect().request(ending(sent))).code == ResponseCode.SUCCESS


def signed(command: Command, key: str) -> Command:
    """The same by a client with this access key, which the connection has proved."""
    return Command(command.code, fields=command.fields | {"AccessKey": key}, body=command.body)


async def beat(running, key: str, client_id: str) -> tuple[Command, list[Command]]:
    """The answer to a heartbeat for the producer group, and what the client is asked from then on."""
    connection, asked = running.connect(), []
    connection.on_push(asked.append)
    body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": GROUP}]}).encode()
    reply = await connection.request(signed(Command(RequestCode.HEART_BEAT, body=body), key))
    running.connections = [*getattr(running, "connections", []), connection]
    return reply, asked


async def test_only_who_may_publish_a_half_message_is_asked_about_it(running) -> None:
    """Any key may name the group in a heartbeat; the question has the message in it."""
    may_publish = {"owner"}
    running.judge_by(lambda identity, action, _resource: action != "publish" or identity in may_publish)
    sent = await running.connect().request(signed(sending(), "owner"))
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    _reply, stranger = await beat(running, "stranger", "s@1")
    feature, config = running.broker.transactions, running.config
    told = "Questions to producers about open transactions"
    checks = running.registry.counter("rocketmq_transaction_checks_total", told, ("result",))
    running.clock.advance_ms(config.transaction_check_after_ms)
    feature.maintain(running.clock.now_ms())
    await running.settle()
    assert (stranger, checks.child("not_permitted").value) == ([], 1)
    _reply, owner = await beat(running, "owner", "o@1")
    for _ in range(3):
        running.clock.advance_ms(config.transaction_check_interval_ms)
        feature.maintain(running.clock.now_ms())
    await running.settle()
    assert (len(stranger), len(owner)) == (0, 3), "the owner gets each question, and none is used up before"
    assert dict(next(iter_stored(owner[0].body)).properties)[b"TRANSACTION_CHECK_TIMES"] == b"1"
    may_publish.clear()
    running.clock.advance_ms(config.transaction_check_interval_ms)
    feature.maintain(running.clock.now_ms())
    await running.settle()
    assert len(owner) == 3, "its right has ended since its heartbeat"


async def test_a_client_id_belongs_to_the_key_that_brought_it(running) -> None:
    running.judge_by(lambda *_: True)
    assert (await beat(running, "owner", "c@1"))[0].code == ResponseCode.SUCCESS
    assert (await beat(running, "owner", "c@1"))[0].code == ResponseCode.SUCCESS, "on another connection"
    assert (await beat(running, "stranger", "c@1"))[0].code == ResponseCode.NO_PERMISSION
    leaving = Command(RequestCode.UNREGISTER_CLIENT, fields={"clientID": "c@1", "producerGroup": GROUP})
    assert (await running.connect().request(signed(leaving, "stranger"))).code == ResponseCode.NO_PERMISSION
    assert (await running.connect().request(signed(leaving, "owner"))).code == ResponseCode.SUCCESS
    assert (await beat(running, "stranger", "c@1"))[0].code == ResponseCode.SUCCESS


async def test_the_outcome_of_a_transaction_is_told_to_who_may_publish_its_message(running) -> None:
    """Whatever topic the request names, or none; also after a restart."""
    connection = running.connect()
    sent = await prepare(connection)
    assert (await connection.request(ending(sent))).code == ResponseCode.SUCCESS
    for _ in range(2):
        running.judge_by(lambda identity, _action, resource: resource == ("orders" if identity == "owner" else "mine"))
        connection = running.connect()
        for outcome in (COMMIT, ROLL_BACK):
            stranger = await connection.request(signed(ending(sent, outcome, topic="mine"), "stranger"))
            assert stranger.code == ResponseCode.NO_PERMISSION
            assert "before" not in stranger.remark
        unnamed = ending(sent)
        del unnamed.fields["topic"]
        assert (await connection.request(signed(unnamed, "owner"))).code == ResponseCode.SUCCESS
        contrary = await connection.request(signed(ending(sent, ROLL_BACK, topic=""), "owner"))
        assert contrary.code == ResponseCode.TRANSACTION_FAILED
        nothing = await connection.request(signed(ending(sent, tranStateTableOffset=7, topic="mine"), "stranger"))
        assert (nothing.code, nothing.remark) == (1, "no half message is pending at offset 7")
        await running.restart()
