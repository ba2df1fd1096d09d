"""Requests of tools that a connected consumer answers, with consumers on sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.rocketmq import relays
from broker.rocketmq.stored_message import position_of_id
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.protocol.records.stored_message import decode_stored, offset_message_id
from remoting.server.server import RemotingServer

Answerer = Callable[[Command], Command | None]


class Member:
    """A consumer that answers requests of its broker as a test says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answerer) -> None:
        self._reader, self.writer, self.answer = reader, writer, answer
        self.asked: list[Command] = []
        self.joined = asyncio.Event()

    def join(self, client_id: str, version: int) -> None:
        body = {"clientID": client_id, "consumerDataSet": [{"groupName": "g"}], "producerDataSet": []}
        beat = Command(RequestCode.HEART_BEAT, opaque=1, body=json.dumps(body).encode(), version=version)
        self.writer.write(encode_frame(beat))

    async def serve(self) -> None:
        decoder = FrameDecoder()
        while data := await self._reader.read(100_000):
            for command in decoder.feed(data):
                if command.is_response:
                    self.joined.set()
                elif not command.is_oneway:
                    self.asked.append(command)
                    reply = self.answer(command)
                    if reply is not None:
                        self.writer.write(encode_frame(reply))


@asynccontextmanager
async def member(server: RemotingServer, answer: Answerer, client_id: str = "c1", version: int = 513):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    made = Member(reader, writer, answer)
    task = asyncio.create_task(made.serve())
    made.join(client_id, version)
    await asyncio.wait_for(made.joined.wait(), 20)
    try:
        yield made
    finally:
        writer.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionResetError):
            await task


@pytest.fixture
async def server(running) -> AsyncIterator[RemotingServer]:
    made = RemotingServer(running.router)
    await made.start("127.0.0.1", 0)
    yield made
    await made.stop(0.2)


async def ask(server: RemotingServer, code: int, language: str = "JAVA", **fields: str) -> Command:
    connection = await connect("127.0.0.1", server.port)
    try:
        reply = await connection.request(Command(code, fields=fields, language=language), 20_000)
        return Command(reply.code, remark=reply.remark, fields=reply.fields, body=bytes(reply.body))
    finally:
        await connection.close()


async def running_info(server: RemotingServer, client_id: str = "c1", **more: str) -> Command:
    fields = {"consumerGroup": "g", "clientId": client_id, "jstackEnable": "false", **more}
    return await ask(server, RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)


async def test_running_info_is_what_the_member_answers(server) -> None:
    async with member(server, lambda asked: asked.reply(body=b'{"jstack":"x"}')) as consumer:
        reply = await running_info(server, AccessKey="k", Signature="s")
        assert (reply.code, reply.body) == (ResponseCode.SUCCESS, b'{"jstack":"x"}')
        (asked,) = consumer.asked
        assert asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert asked.fields == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}


async def test_a_refusal_of_the_member_is_passed_on(server) -> None:
    async with member(server, lambda asked: asked.reply(1, "The Consumer Group <g> not exist in this consumer")):
        reply = await running_info(server)
    assert (reply.code, reply.remark) == (1, "The Consumer Group <g> not exist in this consumer")


async def test_a_member_that_is_not_there_or_too_old_is_named(server) -> None:
    assert "not online" in (await running_info(server)).remark
    async with member(server, lambda asked: asked.reply(), version=relays.VERSION_MIN - 1):
        reply = await running_info(server)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "3.1.8" in reply.remark
        assert "not online" in (await running_info(server, "c2")).remark


async def test_a_member_that_does_not_answer_is_a_timeout(server, monkeypatch) -> None:
    monkeypatch.setattr(relays, "ANSWER_TIMEOUT_MS", 1)
    async with member(server, lambda asked: None):
        reply = await running_info(server)
    assert reply.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "<g> <c1> Timeout" in reply.remark


async def test_a_member_that_leaves_meanwhile_is_a_failure(server) -> None:
    async with member(server, lambda asked: None) as consumer:
        consumer.answer = lambda asked: consumer.writer.close()
        reply = await running_info(server)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "<g> <c1> Exception" in reply.remark


async def test_a_client_in_the_same_process_answers_too(running) -> None:
    connection = running.connect()
    connection.on_push(lambda asked: connection.respond(asked.reply(body=b"{}")))
    body = {"clientID": "c1", "consumerDataSet": [{"groupName": "g"}]}
    await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    fields = {"consumerGroup": "g", "clientId": "c1"}
    reply = await connection.request(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields))
    assert (reply.code, reply.body) == (ResponseCode.SUCCESS, b"{}")


async def sent(running) -> str:
    """The id of a stored message."""
    connection = running.connect()
    fields = {"topic": "t", "queueId": "0", "producerGroup": "p", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
    reply = await connection.request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"hello"))
    assert reply.code == 0
    return reply.fields["msgId"]


async def test_a_message_is_consumed_directly(running, server) -> None:
    message_id = await sent(running)
    async with member(server, lambda asked: asked.reply(body=b'{"consumeResult":"CR_SUCCESS"}')) as consumer:
        fields = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "t"}
        reply = await ask(server, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)
        assert (reply.code, reply.body) == (ResponseCode.SUCCESS, b'{"consumeResult":"CR_SUCCESS"}')
        (asked,) = consumer.asked
        assert asked.fields == {**fields, "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
        message, _size = decode_stored(asked.body)
        assert (message.topic, message.body, message.queue_offset) == (b"t", b"hello", 0)
        for wrong in ("00" * 16, "no id", "00", message_id[:-2] + "77"):
            reply = await ask(server, RequestCode.CONSUME_MESSAGE_DIRECTLY, **(fields | {"msgId": wrong}))
            assert reply.code == ResponseCode.SYSTEM_ERROR, wrong
        assert len(consumer.asked) == 1


def test_positions_of_ids() -> None:
    assert position_of_id(offset_message_id(("10.0.0.1", 10911), 4711)) == 4711
    assert position_of_id(offset_message_id(("::1", 10911), 4711)) == 4711
    assert position_of_id("F" * 32) == -1
    assert position_of_id("F" * 30) is None


async def status(server: RemotingServer, language: str = "JAVA", **more: str) -> Command:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    return await ask(server, code, language, **{"group": "g", "topic": "t", **more})


async def test_the_status_of_the_members_is_gathered(server) -> None:
    assert "No Any Consumer online" in (await status(server)).remark
    theirs = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":1,"topic":"t"}:7}}'
    good, bad = (lambda asked: asked.reply(body=theirs)), (lambda asked: asked.reply(1, "no"))
    async with (
        member(server, good) as one,
        member(server, bad, "c2") as two,
        member(server, lambda asked: asked.reply(body=b"?"), "c3"),
    ):
        reply = await status(server)
        queue = b'{"brokerName":"broker-a","queueId":1,"topic":"t"}'
        assert reply.body == b'{"consumerTable":{"c1":{%s:7},"c3":{}}}' % queue
        assert [each.code for each in one.asked + two.asked] == [RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] * 2
        assert one.asked[0].fields == {"group": "g", "topic": "t"}
        only = json.loads((await status(server, "PYTHON", clientAddr="c1")).body)
        assert only == {"consumerTable": {"c1": {queue.decode(): 7}}}
        assert len(two.asked) == 1


async def test_a_member_that_may_not_read_is_not_asked(server, running) -> None:
    """Its right may have ended since its heartbeat: to the group, or to the message."""
    message_id = await sent(running)
    async with member(server, lambda asked: asked.reply(body=b"{}")) as consumer:
        for forbidden, asked in (("$group/g", 0), ("t/#", 1)):
            running.judge_by(lambda _identity, action, what, no=forbidden: action != "consume" or what != no)
            consumer.asked.clear()
            assert (await running_info(server)).code == (0 if asked else ResponseCode.NO_PERMISSION)
            fields = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "t"}
            assert (await ask(server, RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)).code != 0
            assert len(consumer.asked) == asked
    assert running.broker.tools.metrics.dropped.child("receiver_not_permitted").value == 2, "of 307, and of 309"
