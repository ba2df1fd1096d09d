"""APPEND_MANY: one append per turn, every frame answered after the confirm, refusals alone."""

from __future__ import annotations

import asyncio
import errno

from remoting.protocol.append_body import decode_append_reply, encode_entries, encode_mqtt_entry
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import Command


async def test_frames_of_one_turn_share_one_append_and_each_gets_its_own_places(running) -> None:
    connection = running.connect()
    appends = []
    append = running.store.append
    running.store.append = lambda messages, **options: appends.append(len(messages)) or append(messages, **options)
    bodies = [running.publish(b"a/1", b"a/2"), running.publish(b"a/1")]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert appends == [3]
    places = [decode_append_reply(reply.body) for reply in replies]
    assert places[0][0] == places[1][0] <= running.store.confirm_position
    assert places[1][1] == [
        (places[0][1][0][0], places[0][1][0][1] + (2 if len({p for p, _ in places[0][1]}) == 1 else 1))
    ]
    assert running.registry.values()["rocketmq_messages_in_total"] == 3


async def test_a_refused_frame_leaves_nothing_and_hurts_nobody_else(running) -> None:
    connection = running.connect()
    bodies = [
        running.publish(b"a/1"),
        running.publish(b"a/1", b"a/+"),
        encode_entries([encode_mqtt_entry(b"a", b"x" * 4_194_305, 0, 1, b"d")]),
        b"\x01\x00",
    ]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert [reply.code for reply in replies] == [
        ResponseCode.SUCCESS,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
    ]
    assert running.store.metrics()["messages_total"] == 1


async def test_what_only_the_store_finds_too_large_hurts_no_other_frame(running) -> None:
    connection = running.connect()
    running.broker.placement._message_size_bytes_max = 10**9
    bodies = [running.publish(b"a/1"), running.publish(b"a/1", body=b"x" * 6_000_000), running.publish(b"a/2")]
    replies = await asyncio.gather(*[connection.request(Command(RequestCode.APPEND_MANY, body=b)) for b in bodies])
    assert [reply.code for reply in replies] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert running.store.metrics()["messages_total"] == 2


async def test_nothing_is_acknowledged_when_the_disk_fails(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    running.faults.arm("log.fsync", OSError(errno.EIO, "gone"), times=None)
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "gone" in reply.remark
    again = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_full_disk_is_said_clearly(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    running.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=1)
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1")))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "full" in reply.remark
