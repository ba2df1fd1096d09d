"""Ends of queues at a new master; the other questions about offsets are asked in `test_feature`."""

from __future__ import annotations

import asyncio

import pytest

from broker.groups.offset_queries import NO_TIME
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.groups.test_feature import ask


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP])
async def test_a_new_master_shows_no_end_before_it_is_sure(running, code) -> None:
    """Its predecessor may have shown more than is confirmed here: the answer waits, others do not."""
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    assert (await ask(connection, RequestCode.GET_EARLIEST_MSG_STORETIME)).fields["timestamp"] == str(NO_TIME)
    message = Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t", "e": "0"}, body=b"m")
    await connection.request(message)
    running.broker.tools.identity.started_position = running.store.end_position + 1
    waiting = asyncio.create_task(ask(connection, code, timestamp=str(2**62)))
    assert (await ask(connection, RequestCode.GET_MIN_OFFSET)).fields["offset"] == "0"
    assert not waiting.done()
    await connection.request(message)
    assert (await waiting).fields["offset"] == "2"
