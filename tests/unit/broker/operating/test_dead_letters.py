"""Dead letters page by page, and giving one to its group again."""

from __future__ import annotations

from typing import Any

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from tests.unit.broker.operating.asking import asked
from tests.unit.broker.pop.client import GROUP, TOPIC, Message, expire, pop, pull, send

GIVEN_UP = {"delayLevel": "-1", "originMsgId": "X"}


async def give_up(running, group: str, *bodies: bytes, topic: str = "orders") -> None:
    """Messages of a topic that a group puts into its dead letters."""
    connection = running.connect()
    for body in bodies:
        fields = {"topic": topic, "producerGroup": "p", "queueId": "0", "properties": "KEYS\x01k\x02TAGS\x01red\x02"}
        sent = await connection.request(Command(Code.SEND_MESSAGE, fields=fields, body=body))
        back = {"offset": str(int(sent.fields["msgId"][16:], 16)), "group": group, **GIVEN_UP}
        assert (await connection.request(Command(Code.CONSUMER_SEND_MSG_BACK, fields=back))).code == 0


async def letters(running, **fields: str) -> tuple[list[tuple[str, str | None]], str]:
    found = await asked(running, Code.DEAD_LETTERS, **fields)
    return [(row["group"], row["body"]) for row in found["dead_letters"]], found["next"]


async def test_pages_by_group_the_newest_first(running) -> None:
    assert await letters(running) == ([], "")
    await give_up(running, "billing", b"1", b"2", b"3")
    await give_up(running, "audit", b"4")
    await give_up(running, "empty%x", b"\xff")
    everything = [("audit", "4"), ("billing", "3"), ("billing", "2"), ("billing", "1"), ("empty%x", "/w==")]
    for limit in range(1, 7):
        found: list[Any] = []
        after = ""
        while True:
            page, after = await letters(running, limit=str(limit), after=after)
            found += page
            if not after:
                break
        assert found == everything, limit
    assert await letters(running, group="billing", limit="2") == (everything[1:3], "0:0:billing")
    assert await letters(running, group="billing", after="0:0:billing") == (everything[3:4], "")
    assert await letters(running, contains="i", limit="1") == (everything[:1], "0:2:billing")
    assert await letters(running, group="nobody") == ([], "")
    for wrong in ("x", "0:x:g", "0:1:", "0:" + "9" * 20 + ":g"):
        assert (await asked(running, Code.DEAD_LETTERS, after=wrong))[0] == ResponseCode.INVALID_PARAMETER


async def test_a_line_says_where_the_message_was_and_shows_it_to_its_readers(running) -> None:
    await give_up(running, "billing", b"hello" + "€".encode() * 2_000)
    (row,) = (await asked(running, Code.DEAD_LETTERS))["dead_letters"]
    assert row.pop("body") == "hello" + "€" * ((4_096 - 5) // 3)  # no half of one
    assert row.pop("position") > 0
    properties = row.pop("properties")
    unique = properties.pop("UNIQ_KEY")
    assert len(unique) == 32
    origin = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": unique}
    assert properties == {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "X"} | origin
    assert row == {
        "group": "billing", "queue": 0, "offset": 0, "topic": "orders", "stored_ms": running.clock.now_ms(), "tries": 1,
        "id": "X", "keys": "k", "tags": "red", "bytes": 6_005, "encoding": "text",
    }  # fmt: skip
    running.judge_by(lambda _identity, action, resource: action == "monitor" or resource == "other/#")
    (row,) = (await asked(running, Code.DEAD_LETTERS))["dead_letters"]
    assert (row["topic"], row["body"], row["properties"]) == ("orders", None, {})
    running.judge_by(lambda _identity, action, resource: action == "monitor" or resource == "orders/#")
    (row,) = (await asked(running, Code.DEAD_LETTERS))["dead_letters"]
    assert row["encoding"] == "text"
    (row,) = (await asked(running, Code.DEAD_LETTERS, bodies="false"))["dead_letters"]
    assert row["body"] is None


async def test_a_letter_sent_again_goes_to_its_group_alone_as_new(running) -> None:
    await give_up(running, "billing", b"hello")
    place = {"group": "billing", "queue": "0", "offset": "0"}
    assert await asked(running, Code.RESEND_DEAD_LETTER, **place) == {
        "group": "billing", "topic": "%RETRY%billing", "queue": 0, "offset": 0,
    }  # fmt: skip
    connection = running.connect()
    reply = await pull(connection, "%RETRY%billing", consumerGroup="billing")
    (message,) = iter_stored(reply.body)
    assert (message.body, message.tags, message.keys, message.reconsume_times) == (b"hello", b"red", [b"k"], 0)
    properties = dict(message.properties)
    assert (properties[b"RETRY_TOPIC"], properties[b"ORIGIN_MESSAGE_ID"]) == (b"orders", b"X")
    assert len(list(iter_stored((await pull(connection, consumerGroup="other")).body))) == 1  # the topic has it once
    assert await letters(running) == ([("billing", "hello")], "")
    await running.restart()
    reply = await pull(running.connect(), "%RETRY%billing", consumerGroup="billing")
    assert [one.body for one in iter_stored(reply.body)] == [b"hello"]


async def given_up_by_pop(running) -> None:
    """A message that the group popped as often as it may."""
    connection = running.connect()
    config = {"groupName": GROUP, "retryMaxTimes": 1}
    assert (
        await asked(running, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, str(config).replace("'", '"').encode()) is None
    )
    await send(connection, b"hello")
    for _ in range(2):
        assert len(await pop(connection)) == 1
        await expire(running)
    assert await pop(connection) == []


async def test_a_letter_that_was_popped_is_popped_again_with_all_tries(running) -> None:
    await given_up_by_pop(running)
    found = await asked(running, Code.RESEND_DEAD_LETTER, group=GROUP, offset="0")
    assert found["topic"] == f"%RETRY%{GROUP}+{TOPIC}"
    for _ in range(2):
        (message,) = await pop(running.connect())
        assert (message.body, type(message)) == (b"hello", Message)
        await expire(running)
    assert await pop(running.connect()) == []
    assert len((await letters(running))[0]) == 2


async def test_the_proxy_of_a_popping_client_says_so(running) -> None:
    """Its message was never given back by the end of its time."""
    connection = running.connect()
    await send(connection, b"hello")
    (message,) = await pop(connection)
    back = {"offset": str(message.stored.position), "group": GROUP, "popTime": "7", **GIVEN_UP}
    assert (await connection.request(Command(Code.CONSUMER_SEND_MSG_BACK, fields=back))).code == 0
    await connection.request(message.command())
    await asked(running, Code.RESEND_DEAD_LETTER, group=GROUP, offset="0")
    assert [one.body for one in await pop(connection)] == [b"hello"]


async def test_what_is_not_there_is_refused(running) -> None:
    await give_up(running, "billing", b"hello")
    for fields in (
        {"group": "billing", "offset": "1"},
        {"group": "billing", "queue": "1", "offset": "0"},
        {"group": "billing", "offset": "-1"},
        {"group": "nobody", "offset": "0"},
    ):
        assert (await asked(running, Code.RESEND_DEAD_LETTER, **fields))[0] == ResponseCode.QUERY_NOT_FOUND
    assert (await asked(running, Code.RESEND_DEAD_LETTER, group="billing"))[0] == ResponseCode.INVALID_PARAMETER
    await asked(running, Code.DELETE_SUBSCRIPTIONGROUP, groupName="billing")
    refused = await asked(running, Code.RESEND_DEAD_LETTER, group="billing", offset="0")
    assert refused[0] == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_resend_is_an_act_and_rights_are_asked_for(running) -> None:
    await give_up(running, "billing", b"hello")
    await asked(running, Code.RESEND_DEAD_LETTER, group="billing", offset="0", road="console")
    judged = []
    running.judge_by(lambda identity, action, resource: judged.append((action, resource)) or False)
    assert (await asked(running, Code.DEAD_LETTERS))[0] == ResponseCode.NO_PERMISSION
    assert (await asked(running, Code.RESEND_DEAD_LETTER, group="billing", offset="0"))[0] == ResponseCode.NO_PERMISSION
    assert judged[0] == ("monitor", "dead letters")
    assert ("admin", "$group/billing") in judged
    running.judge_by(lambda identity, action, resource: True)
    found = (await asked(running, Code.AUDIT_LIST))["records"]
    assert [(one["act"], one["target"], one["outcome"].partition(":")[0]) for one in found] == [
        ("RESEND_DEAD_LETTER", "group=billing offset=0", "refused"),
        ("RESEND_DEAD_LETTER", "group=billing offset=0", "done"),
    ]
