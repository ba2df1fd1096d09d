"""Acknowledgements at a broker link that records requests: what goes together, and what each client is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.pop.handles import parse_batch
from grpc_proxy.acknowledging import BATCH_MAX, Acknowledging
from grpc_proxy.config import GrpcConfig
from grpc_proxy.mapping.incoming import ReceiptHandle
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.renewal import Renewal
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import RequestTimeout, checked
from runtime.metrics import Registry
from tests.support.clock import ManualClock

Code = d.Code
ANN, BOB = GrpcCaller("ann", "127.0.0.1"), GrpcCaller("bob", "127.0.0.1")


class RecordingBroker:
    """One broker group, as the groups and as its link: answers requests by code with what the test has put there."""

    name = "b"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, Any]] = []
        self.batch: Command | LightMQError = Command(0)
        self.alone: dict[int, Command] = {}

    def require(self, *_: Any) -> RecordingBroker:
        return self

    async def answer(self, caller: GrpcCaller, code: int, _fields: dict[str, str], body: bytes) -> Command:
        self.asked.append((caller.client_id, code, parse_batch(json.loads(body))))
        if isinstance(self.batch, LightMQError):
            raise self.batch
        return self.batch

    async def request(self, caller: GrpcCaller, code: int, fields: dict[str, str]) -> Command:
        self.asked.append((caller.client_id, code, int(fields["offset"])))
        return checked(self.alone.get(int(fields["offset"]), Command(0)))


@pytest.fixture
def broker() -> RecordingBroker:
    return RecordingBroker()


@pytest.fixture
def acknowledging(broker: RecordingBroker) -> Acknowledging:
    metrics = GrpcMetrics(Registry())
    renewal = Renewal(broker, GrpcConfig(), ManualClock(), metrics, lambda _client: True)
    return Acknowledging(broker, renewal, metrics)


def handle(offset: int, queue: int = 0, *, retry: bool = False) -> str:
    return str(ReceiptHandle(5, 60_000, retry, "b", queue, offset, 8))


def request(*handles: str, **entry: str) -> Any:
    entries = [{"message_id": "m", "receipt_handle": one, **entry} for one in handles]
    return s.AckMessageRequest(group={"name": "g"}, topic={"name": "t"}, entries=entries)


def codes(answer: Any) -> list[int]:
    return [entry.status.code for entry in answer.entries]


async def test_the_calls_of_a_client_in_one_turn_are_one_request(acknowledging, broker):
    calls = [acknowledging.ack_message(ANN, request(handle(offset, offset % 2))) for offset in range(10)]
    answers = await asyncio.gather(*calls, acknowledging.ack_message(BOB, request(handle(20), handle(22, retry=True))))
    assert all(answer.status.code == Code.OK for answer in answers)
    assert [(client, code) for client, code, _acks in broker.asked] == [
        ("ann", RequestCode.BATCH_ACK_MESSAGE), ("bob", RequestCode.BATCH_ACK_MESSAGE),
    ]  # fmt: skip
    found = [{(ack.topic, ack.queue_index): list(ack.offsets) for ack in acks} for *_about, acks in broker.asked]
    assert found[0] == {("t", 0): [0, 2, 4, 6, 8], ("t", 1): [1, 3, 5, 7, 9]}
    assert found[1] == {("t", 0): [20], ("%RETRY%g+t", 0): [22]}
    assert {ack.owned for *_about, acks in broker.asked for ack in acks} == {(5, 60_000)}


async def test_offsets_far_apart_have_bit_sets_of_their_own(acknowledging, broker):
    far = [7, 7 + BATCH_MAX - 1, 7 + BATCH_MAX, 10**9]
    assert (await acknowledging.ack_message(ANN, request(*map(handle, far)))).status.code == Code.OK
    ((*_about, acks),) = broker.asked
    assert [list(ack.offsets) for ack in acks] == [far[:2], far[2:3], far[3:]]


async def test_only_what_was_not_in_flight_is_refused(acknowledging, broker):
    broker.batch = Command(ResponseCode.NO_MESSAGE, remark="2 of 3 were in flight", body=b"[[1, 6]]")
    answer = await acknowledging.ack_message(ANN, request(handle(5), handle(6, 1), handle(6), "nonsense"))
    wrong = Code.INVALID_RECEIPT_HANDLE
    assert codes(answer) == [Code.OK, wrong, Code.OK, wrong]


async def test_a_batch_that_is_refused_whole_is_asked_for_message_by_message(acknowledging, broker):
    broker.batch = Command(ResponseCode.MESSAGE_ILLEGAL, remark="queueId[1] is illegal")
    broker.alone[6] = Command(ResponseCode.MESSAGE_ILLEGAL, remark="queueId[1] is illegal")
    answer = await acknowledging.ack_message(ANN, request(handle(5), handle(6, 1)))
    assert codes(answer) == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
    assert [about for _client, code, about in broker.asked if code == RequestCode.ACK_MESSAGE] == [5, 6]


async def test_nothing_is_done_when_nobody_knows(acknowledging, broker):
    """An answer that does not come, and a refusal that does not name what it is about."""
    broker.batch = RequestTimeout(RequestCode.BATCH_ACK_MESSAGE, "127.0.0.1:1", 5)
    assert codes(await acknowledging.ack_message(ANN, request(handle(5)))) == [Code.PROXY_TIMEOUT]
    broker.batch = Command(ResponseCode.NO_MESSAGE, remark="0 of 1 were in flight")
    broker.alone[5] = Command(ResponseCode.NO_MESSAGE, remark="message 5 is not in flight")
    assert codes(await acknowledging.ack_message(ANN, request(handle(5)))) == [Code.INVALID_RECEIPT_HANDLE]


async def test_messages_of_lite_topics_are_acknowledged_alone(acknowledging, broker):
    answer = await acknowledging.ack_message(ANN, request(handle(5), handle(6), lite_topic="agent"))
    assert codes(answer) == [Code.OK, Code.OK]
    assert [code for _client, code, _about in broker.asked] == [RequestCode.ACK_MESSAGE] * 2


async def test_a_call_that_is_cancelled_takes_no_other_with_it(acknowledging):
    calls = [asyncio.ensure_future(acknowledging.ack_message(ANN, request(handle(offset)))) for offset in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, False]
    assert [one.status.code for one in (done[0], done[2])] == [Code.OK, Code.OK]
