"""Sessions are counted for operators, and end by upkeep when their expiry is over."""

from __future__ import annotations

from broker.sessions.feature import SessionFeature
from remoting.protocol.bodies.session_body import SessionClose, SessionOpen, SessionOpened, decode, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


async def test_a_closed_session_ends_with_its_expiry(running) -> None:
    sessions = running.broker.sessions
    assert isinstance(sessions, SessionFeature)
    assert {RequestCode.SESSION_OPEN, RequestCode.APPEND_OFFSETS, RequestCode.SESSION_LIST} <= set(sessions.handlers())
    proxy = running.connect()
    reply = await proxy.request(Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("c", False, None, 5))))
    assert sessions.status()["clients_connected"] == 1
    closing = SessionClose("c", decode(SessionOpened, reply.body).epoch, True, [], [])
    assert (await proxy.request(Command(RequestCode.SESSION_CLOSE, body=encode(closing)))).code == 0
    now_ms = running.clock.now_ms()
    assert sessions.maintain(now_ms) == {"session_expired": 0, "shared_session_ended": 0}
    assert sessions.maintain(now_ms + 5_000)["session_expired"] == 1
    assert sessions.status() == {"sessions": 0, "clients_total": 0, "clients_connected": 0, "clients_expired": 1}
