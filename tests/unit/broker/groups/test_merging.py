"""Offsets that another broker took meanwhile: what is ahead is taken over, nothing is set back."""

from __future__ import annotations

import msgspec
import pytest

from broker.groups.merging import decode_offsets
from broker.requests import MERGED_MAX
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


def encode_offsets(offsets: dict[tuple[str, str, int], int]) -> bytes:
    return msgspec.json.encode([(*key, offset) for key, offset in offsets.items()])


async def merge(running, offsets: dict[tuple[str, str, int], int]) -> Command:
    command = Command(RequestCode.MERGE_OFFSETS, body=encode_offsets(offsets))
    return await running.connect().request(command)


async def test_the_larger_offset_counts(running) -> None:
    groups = running.broker.groups
    running.broker.topics.table.ensure("t", 2)
    groups.offsets.commit([("g", "t", 0, 7), ("g", "t", 1, 7)])
    reply = await merge(running, {("g", "t", 0): 9, ("g", "t", 1): 5, ("new", "t", 0): 1})
    assert reply.code == ResponseCode.SUCCESS
    assert groups.offsets.of_group("g") == {("t", 0): 9, ("t", 1): 7}
    assert groups.offsets.of_group("new") == {("t", 0): 1}
    assert running.broker.tools.store.confirm_position == running.broker.tools.store.end_position, "it is confirmed"


async def test_a_commit_that_waits_is_ahead_of_the_merge(running) -> None:
    groups = running.broker.groups
    running.broker.topics.table.ensure("t", 1)
    groups.commits.add("g", "t", 0, 12)
    await merge(running, {("g", "t", 0): 9})
    assert groups.offsets.of_group("g") == {("t", 0): 12}


async def test_merging_twice_writes_nothing_new(running) -> None:
    running.broker.topics.table.ensure("t", 1)
    await merge(running, {("g", "t", 0): 9})
    end = running.broker.tools.store.end_position
    assert (await merge(running, {("g", "t", 0): 9})).code == ResponseCode.SUCCESS
    assert running.broker.tools.store.end_position == end


async def test_queues_that_do_not_exist_are_left_out(running) -> None:
    running.broker.topics.table.ensure("t", 1)
    assert (await merge(running, {("g", "t", 3): 9, ("g", "none", 0): 9})).code == ResponseCode.SUCCESS
    assert running.broker.groups.offsets.of_group("g") == {}
    assert running.broker.tools.metrics.dropped.child("offset_not_merged").value == 2


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'[["g","t",0]]', b'[["g","t",-1,0]]', b'[["g","t",0,-1]]', b'[[1,"t",0,0]]']
)
def test_malformed_bodies_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_offsets(body)


def test_too_many_are_refused() -> None:
    many = {("g", "t", number): 1 for number in range(MERGED_MAX + 1)}
    with pytest.raises(Refused, match="may be"):
        decode_offsets(encode_offsets(many))
    del many["g", "t", 0]
    assert len(decode_offsets(encode_offsets(many))) == MERGED_MAX
