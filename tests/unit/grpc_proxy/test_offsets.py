"""Pulls by queue and offset, and the offsets of groups, through a real port to a real broker (`grpc_proxy.offsets`)."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_proxy.groups import ConsumedGroups, GroupRules
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.values import timestamp
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command
from tests.support.clock import ManualClock
from tests.unit.grpc_proxy.conftest import GROUP, METADATA, TOPIC, ProxyBench, message

Code = d.Code


async def filled(proxied: ProxyBench) -> Any:
    """Three messages in one queue; returns the queue."""
    grouped = [message(b"%d" % number, message_group="g", message_type=d.MessageType.FIFO) for number in range(3)]
    await proxied.send(*grouped)
    for index in range(4):
        queue = d.MessageQueue(topic=TOPIC, id=index)
        if (await proxied.call("QueryOffset", s.QueryOffsetRequest(message_queue=queue, query_offset_policy=1))).offset:
            return queue
    raise AssertionError("the messages are in no queue")


async def pull(proxied: ProxyBench, queue: Any, offset: int, **asked: Any) -> tuple[int, list[bytes], int]:
    """(code, bodies, next offset) of a PullMessage."""
    given = {"group": GROUP, "message_queue": queue, "offset": offset, "batch_size": 2, "long_polling_timeout": {}}
    raw = s.PullMessageRequest(**{**given, **asked}).SerializeToString()
    call = proxied.channel.unary_stream(f"/{NAME}/PullMessage")(raw, metadata=METADATA, timeout=20)
    found = [s.PullMessageResponse.FromString(one) async for one in call]
    bodies = [one.message.body for one in found if one.HasField("message")]
    return found[0].status.code, bodies, found[-1].next_offset


async def test_a_queue_is_read_from_an_offset_on(proxied):
    queue = await filled(proxied)
    assert await pull(proxied, queue, 0) == (Code.OK, [b"0", b"1"], 2)
    assert await pull(proxied, queue, 2) == (Code.OK, [b"2"], 3)
    assert (await pull(proxied, queue, 3))[:2] == (Code.MESSAGE_NOT_FOUND, [])
    assert await pull(proxied, queue, 99) == (Code.ILLEGAL_OFFSET, [], 3)
    chosen = {"type": d.FilterType.TAG, "expression": "none"}
    assert await pull(proxied, queue, 0, filter_expression=chosen) == (Code.MESSAGE_NOT_FOUND, [], 2)


async def test_a_pull_waits_for_a_message(proxied):
    queue = await filled(proxied)
    waiting = asyncio.ensure_future(pull(proxied, queue, 3, long_polling_timeout={"seconds": 8}))
    while not proxied.broker.broker.reading.long_polls:
        await asyncio.sleep(0)
    await proxied.send(message(b"3", message_group="g", message_type=d.MessageType.FIFO))
    assert await waiting == (Code.OK, [b"3"], 4)


async def test_the_offsets_of_a_group_and_of_a_queue(proxied):
    queue = await filled(proxied)
    stored = s.GetOffsetRequest(group=GROUP, message_queue=queue)
    await pull(proxied, queue, 0)
    update = s.UpdateOffsetRequest(group=GROUP, message_queue=queue, offset=2)
    assert (await proxied.call("UpdateOffset", update)).status.code == Code.OK
    assert (await proxied.call("GetOffset", stored)).offset == 2
    policies = d.QueryOffsetPolicy
    for policy, offset in ((policies.BEGINNING, 0), (policies.END, 3), (policies.TIMESTAMP, 3)):
        later = timestamp(proxied.clock.now_ms() + 1_000)
        asked = s.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy, timestamp=later)
        assert (await proxied.call("QueryOffset", asked)).offset == offset
    update.offset = -1
    assert (await proxied.call("UpdateOffset", update)).status.code == Code.ILLEGAL_OFFSET
    stored.message_queue.id = -1
    assert (await proxied.call("GetOffset", stored)).status.code == Code.BAD_REQUEST


async def test_a_group_that_pops_a_topic_does_not_pull_it(proxied):
    queue = await filled(proxied)
    await proxied.messages()
    assert (await pull(proxied, queue, 0))[0] == Code.BAD_REQUEST


class Link:
    """Answers with what the test has put there."""

    def __init__(self, *answers: Command | Exception) -> None:
        self.answers = list(answers)

    async def request(self, _caller: Any, _code: int, _fields: dict[str, str]) -> Command:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_the_rules_of_a_group_are_kept_for_some_seconds():
    """Those of a group that does not exist yet are not."""
    changed = Command(0, body=b'{"groupName": "g", "consumeMessageOrderly": true, "retryMaxTimes": 3}')
    clock, caller = ManualClock(), GrpcCaller("c", "127.0.0.1")
    groups = ConsumedGroups(Link(Refused(26, "no such group"), Command(0, body=b"{}"), changed), clock)
    assert await groups.rules(caller, "g") == GroupRules(False, 16)
    assert await groups.rules(caller, "g") == GroupRules()
    assert await groups.rules(caller, "g") == GroupRules()
    clock.advance_ms(5_000)
    assert await groups.rules(caller, "g") == GroupRules(True, 3)
