"""HISTORY over the wire: bounded steps until the filter's own queue takes over."""

from __future__ import annotations

import pytest

from broker.history import feature as history
from remoting.protocol.bodies.session_body import (
    HISTORY_BIT,
    FilterRequest,
    HistoryReply,
    HistoryRequest,
    HistoryStart,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    UnsubscribeRequest,
    decode,
    encode,
    unpack_before,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records

FILTER = "plant/+"


async def publish(running, first: int, count: int) -> None:
    connection = running.connect()
    for number in range(first, first + count):
        body = running.publish(b"plant/%d" % (number % 5), b"other/x", body=b"%d" % number)
        await connection.request(Command(RequestCode.APPEND_MANY, body=body))


async def call(connection, code, body, kind):
    reply = await connection.request(Command(code, body=encode(body)))
    assert reply.code == 0, reply.remark
    return decode(kind, reply.body)


async def read(connection, queue_id: int, position: int, from_ms: int, last: int) -> list[int]:
    """Read as a proxy does: find the last, then go forward."""
    while last:
        found = await call(
            connection, RequestCode.HISTORY, HistoryRequest(queue_id, FILTER, position, 0, last), HistoryReply
        )
        position, last = found.position, 0 if found.done else found.last
    numbers = []
    while True:
        found = await call(
            connection, RequestCode.HISTORY, HistoryRequest(queue_id, FILTER, position, from_ms), HistoryReply
        )
        numbers += [int(bytes(record.body)) for record in iter_records(found.records)]
        position = found.position
        if found.done:
            return numbers


@pytest.mark.parametrize(
    ("start", "numbers"),
    [(HistoryStart(from_offset=0), range(60)), (HistoryStart(last=25), range(55, 60)), (HistoryStart(last=20), ())],
)
async def test_what_was_before_the_queue_comes_in_steps(running, monkeypatch, start, numbers) -> None:
    """20 messages are in the filter's queue, 60 before it."""
    monkeypatch.setattr(history, "STEP_MAX", (7, 64 * 1024))
    monkeypatch.setattr(history, "SCANS_MAX", 1)
    await publish(running, 0, 60)
    connection = running.connect()
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    subscribe = SubscribeRequest("c", opened.epoch, True, [FilterRequest(FILTER, 1)])
    await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)
    await publish(running, 60, 20)
    subscribe.filters = [FilterRequest(FILTER, 1, history=start)]
    (result,) = (await call(connection, RequestCode.SUBSCRIBE, subscribe, Subscribed)).results
    assert (result.offset, result.live, result.existed) == (0, 20, True)
    if not numbers:
        assert result.before is None
        return
    position, from_ms, last = unpack_before(result.before)
    assert await read(connection, result.queue_id, position, from_ms, last) == list(numbers)
    again = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    assert again.subscriptions[0].before == result.before
    gone = await connection.request(
        Command(RequestCode.UNSUBSCRIBE, body=encode(UnsubscribeRequest("c", again.epoch, True, [FILTER])))
    )
    assert gone.code == 0
    assert running.broker.sessions.table.get("c").offsets == {}


async def test_positions_rise_and_survive_a_restart(running) -> None:
    """Committed like an offset, under the queue's id with a bit set."""
    from remoting.protocol.bodies.session_body import encode_offsets

    await publish(running, 0, 3)
    connection = running.connect()
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    from_time = SubscribeRequest("c", opened.epoch, True, [FilterRequest(FILTER, 1, history=HistoryStart(from_ms=5))])
    (result,) = (await call(connection, RequestCode.SUBSCRIBE, from_time, Subscribed)).results
    assert unpack_before(result.before) == (0, 5, 0)
    body = encode_offsets([(b"c", result.queue_id | HISTORY_BIT, 640)])
    assert (await connection.request(Command(RequestCode.APPEND_OFFSETS, body=body))).code == 0
    await running.restart()
    connection = running.connect()
    again = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    assert again.subscriptions[0].before == 640


async def test_invalid_requests_are_refused(running, monkeypatch) -> None:
    """An invalid filter, a queue that does not exist, too many queues."""
    connection = running.connect()
    own = running.broker.subscriptions.filters.acquire(b"#")
    await publish(running, 0, 1)
    monkeypatch.setattr(history, "QUEUES_MAX", 0)
    for request, code in (
        (HistoryRequest(own, "a/#/b"), ResponseCode.INVALID_PARAMETER),
        (HistoryRequest(999, "a/#"), ResponseCode.INVALID_PARAMETER),
        (HistoryRequest(own, "#"), ResponseCode.SYSTEM_BUSY),
    ):
        assert (await connection.request(Command(RequestCode.HISTORY, body=encode(request)))).code == code


async def test_a_new_master_says_that_nothing_is_left_once_it_is_sure(running) -> None:
    """Until then messages that readers were shown may be missing; where the queue has a message, that is its end."""
    await publish(running, 0, 3)
    connection = running.connect()
    opened = await call(connection, RequestCode.SESSION_OPEN, SessionOpen("c", False, None, 60), SessionOpened)
    everything = SubscribeRequest("c", opened.epoch, True, [FilterRequest(FILTER, 1, history=HistoryStart(from_ms=5))])
    (result,) = (await call(connection, RequestCode.SUBSCRIBE, everything, Subscribed)).results
    identity = running.broker.tools.identity
    request = Command(RequestCode.HISTORY, body=encode(HistoryRequest(result.queue_id, FILTER)))
    identity.started_position = running.store.end_position + 1
    refused = await connection.request(request)
    assert (refused.code, "may wait" in refused.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)
    identity.started_position -= 1
    assert await read(connection, result.queue_id, 0, 0, 0) == [0, 1, 2]
    await publish(running, 3, 1)
    identity.started_position = running.store.end_position + 1
    assert await read(connection, result.queue_id, 0, 0, 0) == [0, 1, 2]
