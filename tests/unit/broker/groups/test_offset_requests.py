"""Offsets by code: 14, 15, 29-33."""

from __future__ import annotations

from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command


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
    bad = await ask(connection, RequestCode.GET_MAX_OFFSET, queueId="7")
    assert bad.code == ResponseCode.INVALID_PARAMETER


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
