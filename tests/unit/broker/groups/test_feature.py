"""Filters, requests of members and about offsets, upkeep."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker.groups.feature import SQL92, TAG, ConsumerGroups, selection
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command


class View:
    """The fields of a record that are used."""

    def __init__(self, tags: bytes = b"", keys: bytes = b"", **properties: str) -> None:
        self.tags, self.keys = tags, keys
        self._properties = properties

    def properties(self):
        return [(name.encode(), value.encode()) for name, value in self._properties.items()]


@pytest.mark.parametrize("text", ["*", "", " ", "a || *", "||"])
def test_all(text):
    assert selection(text, TAG) is None


def test_tags():
    wanted = selection(" a || b ", TAG)
    assert [wanted(View(tags)) for tags in (b"a", b"b", b"c", b"")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "view", "expected"),
    [
        ("speed > 9", View(speed="10"), True),
        ("speed > 9", View(speed="9"), False),
        ("speed > 9", View(), False),
        ("NOT (speed > 9)", View(), False),
        ("TAGS = 'a' AND KEYS = 'k'", View(b"a", b"k"), True),
        ("line IN ('a', 'b')", View(line="b"), True),
    ],
)
def test_expressions(text, view, expected):
    """What is unknown is not true, so the message is not wanted."""
    assert selection(text, SQL92)(view) is expected


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [("speed >", SQL92, ResponseCode.SUBSCRIPTION_PARSE_FAILED), ("a", "CLASS", ResponseCode.SYSTEM_ERROR)],
)
def test_refusals(text, kind, code):
    with pytest.raises(Refused) as refused:
        selection(text, kind)
    assert refused.value.code == code


def beat(client_id: str, **more) -> Command:
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{"groupName": "g", "consumeType": 1, "messageModel": "CLUSTERING"}],
        **more,
    }
    return Command(RequestCode.HEART_BEAT, body=msgspec.json.encode(body))


async def test_members_are_told_of_each_other(running) -> None:
    one, two = running.connect(), running.connect()
    pushes = []
    one.on_push(pushes.append)
    assert (await one.request(beat("b"))).fields["IS_SUB_CHANGE"] == "true"
    assert (await one.request(beat("b"))).fields["IS_SUB_CHANGE"] == "false"
    pushes.clear()
    await two.request(beat("a"))
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"})
    assert msgspec.json.decode((await one.request(members)).body) == {"consumerIdList": ["a", "b"]}
    assert [(push.code, push.fields["consumerGroup"]) for push in pushes] == [
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "g")
    ]
    assert running.broker.topics.table.get("%RETRY%g") is not None
    await two.close()
    async with asyncio.timeout(5):
        while len(pushes) < 2:
            await asyncio.sleep(0)
    leave = Command(RequestCode.UNREGISTER_CLIENT, fields={"clientID": "b", "consumerGroup": "g", "producerGroup": "p"})
    assert (await one.request(leave)).code == 0
    members = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields={"consumerGroup": "g"})
    assert (await one.request(members)).code == ResponseCode.SYSTEM_ERROR


async def test_members_of_a_broadcast_group_are_not_told_of_each_other(running) -> None:
    """As in RocketMQ: told, a client would leave out the heartbeat with its new queues while it sends another one."""
    one, two = running.connect(), running.connect()
    pushes = []
    one.on_push(pushes.append)
    consumers = [{"groupName": "g", "consumeType": 1, "messageModel": "BROADCASTING"}]
    for client, connection in (("b", one), ("a", two)):
        assert (await connection.request(beat(client, consumerDataSet=consumers))).code == 0
    assert pushes == []


async def test_invalid_heartbeats(running) -> None:
    connection = running.connect()
    for body in (b"nonsense", b"[]", b"{}"):
        reply = await connection.request(Command(RequestCode.HEART_BEAT, body=body))
        assert reply.code == ResponseCode.INVALID_PARAMETER
    only_producer = Command(RequestCode.HEART_BEAT, body=b'{"clientID":"x","producerDataSet":[{"groupName":"p"}]}')
    assert (await connection.request(only_producer)).code == 0


async def test_bodies_of_old_java_clients_are_read(running) -> None:
    connection = running.connect()
    body = b"{clientID:'old',producerDataSet:[{groupName:'p'}],consumerDataSet:[]}"
    assert (await connection.request(Command(RequestCode.HEART_BEAT, body=body))).code == 0


async def test_a_subscription_is_checked_before_it_is_used(running) -> None:
    """46: in the forms that a client may start with; an expression that cannot be parsed has its own code."""
    connection = running.connect()

    async def check(**subscription: str) -> int:
        body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t", **subscription}}
        command = Command(RequestCode.CHECK_CLIENT_CONFIG, body=msgspec.json.encode(body))
        return (await connection.request(command)).code

    assert await check(subString="a || b", expressionType="TAG") == 0
    assert await check(subString="speed > 3 AND line = 'a'", expressionType="SQL92") == 0
    assert await check(subString="speed >", expressionType="SQL92") == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert await check(subString="x", expressionType="CLASS") == ResponseCode.SYSTEM_ERROR
    assert (await connection.request(Command(RequestCode.CHECK_CLIENT_CONFIG, body=b"{}"))).code == 0


async def ask(connection, code: int, **fields: str):
    named = {"topic": "t", "queueId": "0", "consumerGroup": "g", **fields}
    return await connection.request(Command(code, fields=named))


async def test_group_offsets(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    assert (await ask(connection, RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "0"
    missing = await ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, setZeroIfNotFound="false")
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert (await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="4")).code == 0
    connection.oneway(
        Command(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            flag=FLAG_ONEWAY,
            fields={"topic": "t", "queueId": "0", "consumerGroup": "g", "commitOffset": "5"},
        )
    )
    assert (await ask(connection, RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "5"
    negative = await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="-1")
    assert negative.code == ResponseCode.INVALID_PARAMETER
    await running.restart()
    assert (await ask(running.connect(), RequestCode.QUERY_CONSUMER_OFFSET)).fields["offset"] == "5"


async def test_ends_and_times(running) -> None:
    connection = running.connect()
    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert (await ask(connection, code)).fields["offset"] == "0"
    running.broker.topics.table.ensure("t", 1)
    assert (await ask(connection, RequestCode.GET_EARLIEST_MSG_STORETIME)).fields["timestamp"] == "-1"
    for _ in range(3):
        await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t", "e": "0"}, body=b"m"))
        running.clock.advance_ms(1_000)
    now_ms = running.clock.now_ms()
    assert (await ask(connection, RequestCode.GET_MAX_OFFSET)).fields["offset"] == "3"
    assert (await ask(connection, RequestCode.GET_EARLIEST_MSG_STORETIME)).fields["timestamp"] == str(now_ms - 3_000)
    for timestamp, offset in ((0, "0"), (now_ms - 2_000, "1"), (now_ms, "3")):
        found = await ask(connection, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(timestamp))
        assert found.fields["offset"] == offset
    missing = await ask(connection, RequestCode.GET_MAX_OFFSET, queueId="7")
    assert missing.fields["offset"] == "0"


async def test_the_upper_boundary_is_the_last_message_stored_at_or_before_a_time(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    asked = {"code": RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "boundaryType": "UPPER"}
    assert (await ask(connection, **asked, timestamp="5")).fields["offset"] == "0"
    start_ms = running.clock.now_ms()
    for _ in range(2):
        for _ in range(2):  # two at each time
            await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t", "e": "0"}, body=b"m"))
        running.clock.advance_ms(1_000)
    for after_ms, upper, lower in (
        (-1, "0", "0"),
        (0, "1", "0"),
        (500, "1", "2"),
        (1_000, "3", "2"),
        (9_000, "3", "4"),
    ):
        timestamp = str(start_ms + after_ms)
        assert (await ask(connection, **asked, timestamp=timestamp)).fields["offset"] == upper
        found = await ask(connection, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp)
        assert found.fields["offset"] == lower


async def test_a_feature_has_handlers_and_upkeep(running) -> None:
    groups = running.broker.groups
    assert isinstance(groups, ConsumerGroups)
    assert {RequestCode.HEART_BEAT, RequestCode.QUERY_CONSUMER_OFFSET} <= set(groups.handlers())
    assert groups.maintain(running.clock.now_ms()) == {"client_silent": 0}


async def test_a_short_heartbeat_keeps_the_subscriptions_of_the_last_full_one(running) -> None:
    connection = running.connect()
    subscribed = {"groupName": "g", "subscriptionDataSet": [{"topic": "t", "subString": "a"}]}
    assert (await connection.request(beat("c", consumerDataSet=[subscribed]))).code == 0
    short = beat("c", consumerDataSet=[{"groupName": "g", "subscriptionDataSet": []}], withoutSub=True)
    assert (await connection.request(short)).fields["IS_SUB_CHANGE"] == "false"
    assert running.broker.groups.clients.subscription("g", "t") == {"topic": "t", "subString": "a"}
    new = beat("new", consumerDataSet=[{"groupName": "g"}], withoutSub=True)
    assert (await connection.request(new)).fields["IS_SUB_CHANGE"] == "true"


@pytest.mark.parametrize("place", [{"topic": "unknown", "queueId": "0"}, {"topic": "t", "queueId": "9"}])
async def test_queues_that_do_not_exist_are_answered_like_empty_ones(running, place) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)

    async def ask(code: int, **more: str) -> Command:
        return await connection.request(Command(code, fields={**place, **more}))

    for code in (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET):
        assert (await ask(code)).fields["offset"] == "0"
    assert (await ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="0")).fields["offset"] == "0"
    assert (await ask(RequestCode.GET_EARLIEST_MSG_STORETIME)).fields["timestamp"] == "-1"
    reply = await ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g")
    assert reply.code == ResponseCode.QUERY_NOT_FOUND
