"""The sessions as operators see them."""

from __future__ import annotations

from remoting.protocol.bodies.session_body import (
    FilterRequest,
    FlowBatch,
    SessionClose,
    SessionFlow,
    SessionOpen,
    SessionOpened,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


async def opened(connection, name="c", user=None) -> int:
    body = encode(SessionOpen(name, False, user, 60))
    return decode(SessionOpened, (await connection.request(Command(RequestCode.SESSION_OPEN, body=body))).body).epoch


async def listed(connection, **fields):
    reply = await connection.request(Command(RequestCode.SESSION_LIST, fields=fields))
    assert reply.code == 0, reply.remark
    return fastjson.loads(reply.body)


async def test_a_session_shows_user_subscriptions_backlog_and_what_it_lost(running) -> None:
    connection = running.connect()
    epoch = await opened(connection, user="anna")
    subscribe = SubscribeRequest("c", epoch, True, [FilterRequest("a/+", 1, 0b11, 7), FilterRequest("b", 2)])
    await connection.request(Command(RequestCode.SUBSCRIBE, body=encode(subscribe)))
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"b")))
    queue = running.broker.sessions.table.get("c").subscriptions["b"].queue_id
    flow = FlowBatch([SessionFlow("c", epoch, reserved=[(1, queue, 0)])])
    await connection.request(Command(RequestCode.SESSION_FLOW, body=encode(flow)))
    shown = (await listed(connection, client="c"))["session"]
    assert (shown["user"], shown["connected"], shown["ends_ms"], shown["backlog"]) == ("anna", True, None, 3)
    assert (shown["in_flight"], shown["received"], shown["wills"]) == (1, 0, 0)
    first = shown["filters"][0]
    assert (first["filter"], first["no_local"], first["retain_as_published"]) == ("a/+", True, True)
    assert (first["subscription_id"], first["backlog"], first["removed"]) == (7, 2, 0)
    close = SessionClose("c", epoch, True, [], [], removed=[("expiry", 4)])
    await connection.request(Command(RequestCode.SESSION_CLOSE, body=encode(close)))
    (summary,) = (await listed(connection))["sessions"]
    assert (summary["connected"], summary["subscriptions"], summary["removed"]) == (False, 2, {"expiry": 4})
    assert summary["ends_ms"] == running.clock.now_ms() + 60_000


async def test_pages_go_by_client_id(running) -> None:
    connection = running.connect()
    for name in "dacb":
        await opened(connection, name)
    first = await listed(connection, limit="3")
    assert ([one["client"] for one in first["sessions"]], first["total"], first["more"]) == (["a", "b", "c"], 4, True)
    found = await listed(connection, contains="c", limit="1")
    assert ([one["client"] for one in found["sessions"]], found["matching"], found["more"]) == (["c"], 1, False)
    rest = await listed(connection, after="c")
    assert ([one["client"] for one in rest["sessions"]], rest["more"]) == (["d"], False)


async def test_sessions_of_one_user_or_state(running) -> None:
    connection = running.connect()
    epochs = {name: await opened(connection, name, user) for name, user in (("a", "anna"), ("b", "ben"), ("c", "anna"))}
    close = SessionClose("c", epochs["c"], True, [], [])
    await connection.request(Command(RequestCode.SESSION_CLOSE, body=encode(close)))
    for fields, names in (
        ({"user": "anna"}, ["a", "c"]),
        ({"state": "away"}, ["c"]),
        ({"state": "connected", "user": "anna"}, ["a"]),
        ({"state": "away", "contains": "a"}, []),
    ):
        found = await listed(connection, **fields)
        assert ([one["client"] for one in found["sessions"]], found["matching"]) == (names, len(names)), fields
    wrong = await connection.request(Command(RequestCode.SESSION_LIST, fields={"state": "gone"}))
    assert wrong.code == ResponseCode.INVALID_PARAMETER


async def test_unknown_sessions_and_invalid_numbers_are_refused(running) -> None:
    connection = running.connect()
    gone = await connection.request(Command(RequestCode.SESSION_LIST, fields={"client": "nobody"}))
    assert gone.code == ResponseCode.QUERY_NOT_FOUND
    wrong = await connection.request(Command(RequestCode.SESSION_LIST, fields={"limit": "-1"}))
    assert wrong.code == ResponseCode.INVALID_PARAMETER
