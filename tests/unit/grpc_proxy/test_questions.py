"""What RocketMQ's tools ask of a gRPC client, through a real port and a real broker.

They pass `grpc_proxy.questions`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from grpc_proxy import questions
from grpc_proxy.stubs import definition as d
from remoting import inprocess
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.grpc_proxy.conftest import GROUP, ProxyBench
from tests.unit.grpc_proxy.test_consumers import telemetry

CONSUMER = d.Settings(
    client_type=d.ClientType.PUSH_CONSUMER, subscription={"group": GROUP}, user_agent={"version": "5.2.0"}
)
FIELDS = {"consumerGroup": "billing", "clientId": "client-1"}


def ask(proxied: ProxyBench, code: int, **fields: str) -> asyncio.Task[Command]:
    """A tool's request to the broker."""
    tool = inprocess.connect(proxied.broker.router)
    return asyncio.ensure_future(tool.request(Command(code, fields=FIELDS | fields), 20_000))


async def stored_id(proxied: ProxyBench) -> str:
    """The id by which tools name a message that was just stored."""
    fields = {"a": "g", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    command = Command(RequestCode.SEND_MESSAGE_V2, fields=fields | {"i": "TAGS\x01red"}, body=b"look at me")
    return (await inprocess.connect(proxied.broker.router).request(command)).fields["msgId"]


async def test_the_stacks_of_a_client(proxied):
    async with telemetry(proxied, CONSUMER) as stream:
        asked = ask(proxied, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        await stream.write(thread_stack_trace={"nonce": "another", "thread_stack_trace": "forged"})
        await stream.write(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "main: at sleep"})
        answer = await asked
        assert (answer.code, fastjson.loads(answer.body)["jstack"]) == (ResponseCode.SUCCESS, "main: at sleep")
        await stream.write(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "again"})
        asked = await ask(proxied, RequestCode.GET_CONSUMER_RUNNING_INFO)
        shown = fastjson.loads(asked.body)
        assert (shown["jstack"], shown["properties"]["PROP_CLIENT_VERSION"]) == (None, "5.2.0")
    assert proxied.counted("rocketmq_grpc_commands_dropped_total")["thread_stack_trace"] == 2


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (d.Code.OK, "CR_SUCCESS"),
        (d.Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (d.Code.INTERNAL_SERVER_ERROR, "CR_THROW_EXCEPTION"),
    ],
)
async def test_a_client_consumes_a_stored_message_at_once(proxied, code, result):
    async with telemetry(proxied, CONSUMER) as stream:
        asked = ask(proxied, RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=await stored_id(proxied), topic="orders")
        command = (await stream.read()).verify_message_command
        assert (command.message.body, command.message.topic.name) == (b"look at me", "orders")
        assert command.message.system_properties.tag == "red"
        await stream.write(status={"code": code}, verify_message_result={"nonce": command.nonce})
        answer = await asked
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert fastjson.loads(answer.body)["consumeResult"] == result


async def test_a_client_that_leaves_or_does_not_answer(proxied, monkeypatch: pytest.MonkeyPatch):
    """Another stream's answer does not count; nothing stays open."""
    open_questions: Any = proxied.app._clients._questions
    async with telemetry(proxied, CONSUMER) as stream, telemetry(proxied, CONSUMER, "client-2") as other:
        asked = ask(proxied, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        nonce = (await stream.read()).print_thread_stack_trace_command.nonce
        await other.write(thread_stack_trace={"nonce": nonce, "thread_stack_trace": "not mine"})
        stream.call.cancel()
        answer = await asked
        assert answer.code == ResponseCode.SYSTEM_ERROR, answer.remark
        monkeypatch.setattr(questions, "ANSWER_TIMEOUT_S", 0.05)
        late = await ask(proxied, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true", clientId="client-2")
        assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT, late.remark
        monkeypatch.setattr(questions, "QUESTIONS_MAX", 0)
        full = await ask(proxied, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true", clientId="client-2")
        assert full.code == ResponseCode.SYSTEM_BUSY, full.remark
    assert len(open_questions) == 0
