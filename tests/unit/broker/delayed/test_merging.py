"""Delayed messages that a replica delivered elsewhere: passed over once, and only those."""

from __future__ import annotations

import msgspec
import pytest

from broker.delayed.merging import Item
from broker.requests import merged_items
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties


async def put(running, body: bytes, delay_ms: int = 60_000) -> None:
    text = encode_properties([(b"TIMER_DELAY_MS", b"%d" % delay_ms)]).decode()
    fields = {"a": "p", "b": "later", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": text}
    reply = await running.connect().request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))
    assert reply.code == ResponseCode.SUCCESS


async def merge(running, *items: Item) -> int:
    command = Command(RequestCode.MERGE_ESCAPED, body=msgspec.json.encode(items))
    return (await running.connect().request(command)).code


def item(running, offset: int) -> Item:
    """What a replica kept of the message at this offset of the only bucket."""
    buckets = running.broker.delayed.messages.buckets
    (bucket,) = buckets
    found = buckets.dues(bucket, offset, 1)
    return bucket.start_ms, offset, int(found.dues[0]), int(found.positions[0])


async def test_what_was_delivered_elsewhere_is_passed_over(running) -> None:
    await put(running, b"0")
    await put(running, b"1")
    told = item(running, 0)
    for _ in range(2):
        assert await merge(running, told) == ResponseCode.SUCCESS
        await running.restart()
    delayed = running.broker.delayed.messages
    assert delayed.waiting == 1
    running.clock.advance_ms(61_000)
    while delayed.due(running.clock.now_ms()):
        await running.settle()
    assert delayed.counts.delivered == 1
    assert await merge(running, told) == ResponseCode.SUCCESS


async def test_what_is_no_message_that_waits_is_left_out(running) -> None:
    await put(running, b"0")
    start_ms, offset, due_ms, position = item(running, 0)
    strange = [
        (start_ms + 10**9, offset, due_ms, position), (start_ms, offset, due_ms, position + 8),
        (start_ms, offset + 4, due_ms, position), (start_ms, -1, due_ms, position),
    ]  # fmt: skip
    assert await merge(running, *strange) == ResponseCode.SUCCESS
    assert running.broker.tools.metrics.dropped.child("escape_not_merged").value == 4
    assert running.broker.delayed.messages.waiting == 1


async def test_a_master_that_does_not_know_all_yet_is_asked_again(running) -> None:
    await put(running, b"0")
    running.broker.tools.identity.started_position = running.store.end_position + 1
    assert await merge(running, item(running, 0)) == ResponseCode.SYSTEM_BUSY
    assert running.broker.delayed.messages.waiting == 1


@pytest.mark.parametrize("body", [b"", b"{}", b"[[0,0,0]]", b'[[0,0,0,"x"]]'])
def test_malformed_bodies_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        merged_items(body, Item)
