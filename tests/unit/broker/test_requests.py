"""What request handlers share: fields, answers, tools, and the rights that are checked on every path."""

from __future__ import annotations

import pytest

from broker.requests import BrokerIdentity, ConfirmedAnswers, RequestTools, flag, number, refusal_of, text
from broker.router import ADMIN_CODES, SESSION_CODES, SHARED_CODES
from broker.store.errors import StoreError
from remoting.protocol.bodies.session_body import SessionOpen, encode
from remoting.protocol.bodies.sink_body import AbortBatch, Ledger
from remoting.protocol.bodies.sink_body import encode as encode_sink
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import TRUSTED_ATTRIBUTE


def test_the_address_follows_the_port() -> None:
    identity = BrokerIdentity(epoch=1, started_ms=2, started_position=3)
    identity.host, identity.port = "h", 4_712
    assert (identity.address, identity.readers_address()) == ("h:4712", None)


def test_ids_are_unique_and_of_32_digits() -> None:
    identity = BrokerIdentity(epoch=1, started_ms=2, started_position=0)
    ids = {identity.unique_id() for _ in range(3)}
    assert len(ids) == 3
    assert {len(one) for one in ids} == {32}


def test_lenient_and_exact() -> None:
    fields = {"n": "-3", "empty": "", "t": "true", "one": "1", "zero": "0", "bad": "x"}
    assert text(fields, "n") == "-3"
    assert number(fields, "n") == -3
    assert number(fields, "empty", 7) == number(fields, "none", 7) == 7
    assert flag(fields, "t")
    assert flag(fields, "one")
    assert not flag(fields, "zero")
    assert flag(fields, "none", default=True)
    assert number({"n": str(2**63 - 1)}, "n") == 2**63 - 1
    fields |= {"large": str(2**63), "low": str(-(2**63) - 1)}
    for call in (
        lambda: text(fields, "none"),
        lambda: number(fields, "none"),
        lambda: number(fields, "bad", 1),
        lambda: number(fields, "large"),
        lambda: number(fields, "low"),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == ResponseCode.INVALID_PARAMETER


async def test_what_is_confirmed_is_answered_at_once(running) -> None:
    tools: RequestTools = running.broker.tools
    assert isinstance(tools.answers, ConfirmedAnswers)
    sent: list[Command] = []

    class Asking:
        def send(self, command: Command) -> None:
            sent.append(command)

    reply = Command(0, flag=1, body=b"shown")
    tools.answers.reply_at(0, Asking(), reply)  # type: ignore[arg-type]  # only what is called
    assert sent == [reply]


async def test_a_store_that_failed_is_a_refusal_and_counted(running) -> None:
    metrics = running.broker.tools.metrics
    refused = refusal_of(metrics, StoreError("broken"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert metrics.refused.child("log_failed").value == 1


async def test_every_kind_of_request_is_checked(running) -> None:
    running.judge_by(lambda *_: False)
    connection = running.connect()
    queue_id = running.broker.topics.table.queue_ids(running.broker.topics.table.ensure("t", 1).name)[0]
    requests = [
        Command(RequestCode.APPEND_MANY, body=running.publish(b"a")),
        Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("c", True, None, 0))),
        Command(RequestCode.FOLLOW, body=b"\x01\0\0\0\0\0\0\0" + queue_id.to_bytes(4, "little")),
        Command(RequestCode.MULTI_PULL, body=b"\x01\0\0\0" + queue_id.to_bytes(4, "little") + bytes(16)),
        Command(RequestCode.QUEUE_BOUNDS, body=b'{"topics":["t"]}'),
        Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t"}),
        Command(RequestCode.GET_MAX_OFFSET, fields={"topic": "t", "queueId": "0"}),
        Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields={"topic": "t"}),
        Command(RequestCode.CLUSTER_STATUS),
    ]
    for request in requests:
        reply = await connection.request(request)
        assert reply.code == ResponseCode.NO_PERMISSION, request


async def test_requests_of_proxies_and_administrators_need_that_right(running) -> None:
    """Requests that name no topic are refused as a whole."""
    asked = []
    running.judge_by(lambda _identity, action, _resource: asked.append(action))
    connection = running.connect()
    for code in SESSION_CODES | ADMIN_CODES | SHARED_CODES:
        reply = await connection.request(Command(code, body=b"{}"))
        assert reply.code == ResponseCode.NO_PERMISSION, code
    assert sorted(set(asked)) == ["admin", "locate", "session"]


async def test_a_part_of_this_process_is_not_checked(running) -> None:
    running.judge_by(lambda *_: False)
    connection = running.connect()
    connection.peer.attributes[TRUSTED_ATTRIBUTE] = True
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a")))
    assert reply.code == ResponseCode.SUCCESS


async def test_groups_and_sinks_are_checked(running) -> None:
    """Knowing a name is not enough to move another's offsets or to undo another's batch."""
    running.broker.topics.table.ensure("t", 1)
    running.judge_by(lambda _identity, _action, resource: resource == "t/#")
    connection = running.connect()
    group = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "5"}
    for request in (
        Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=group),
        Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=group),
        Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields=group),
        Command(RequestCode.LOCK_BATCH_MQ, body=b'{"consumerGroup":"g","clientId":"c","mqSet":[]}'),
        Command(RequestCode.UNLOCK_BATCH_MQ, body=b'{"consumerGroup":"g","clientId":"c","mqSet":[]}'),
        Command(RequestCode.ABORT_BATCH, body=encode_sink(AbortBatch("s", 1))),
        Command(RequestCode.LEDGER, body=encode_sink(Ledger("s"))),
    ):
        reply = await connection.request(request)
        assert (reply.code, "'$" in (reply.remark or "")) == (ResponseCode.NO_PERMISSION, True), request
