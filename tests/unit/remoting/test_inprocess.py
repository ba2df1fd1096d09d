"""The socket and its in-process twin: one suite, run over both, then what only the twin promises."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from remoting import inprocess
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import Router, later
from remoting.transport.failures import ConnectionLost, RequestTimeout

ECHO, SLOW, SILENT, REFUSE, CRASH, PUSH, KICK, MALFORMED = range(101, 109)


class Service:
    """A handler with every behaviour a handler may have."""

    def __init__(self):
        self.oneways = []
        self.peers = []
        self.closed = asyncio.Queue()
        self.release = asyncio.Event()
        self.router = Router(
            {
                ECHO: self.echo,
                SLOW: lambda peer, command: later(peer, command, self.slow(command)),
                SILENT: lambda peer, command: None,
                REFUSE: self.refuse,
                CRASH: lambda peer, command: 1 // 0,
                PUSH: self.push,
                KICK: lambda peer, command: peer.close("kicked"),
                MALFORMED: self.malformed,
            }
        )

    def echo(self, peer, command):
        if command.is_oneway:
            self.oneways.append(command.body)
        if peer not in self.peers:
            self.peers.append(peer)
            peer.on_close(self.closed.put_nowait)
        return command.reply(0, None, {"where": peer.address.split(":")[0], **command.fields}, command.body)

    async def slow(self, command):
        await self.release.wait()
        return command.reply(body=b"slow")

    def refuse(self, peer, command):
        raise Refused(17, "there is no such topic")

    def malformed(self, peer, command):
        raise RemoteViolation("three bytes missing")

    def push(self, peer, command):
        peer.send(Command(9003, flag=2, body=b"first"))
        peer.send(Command(9003, flag=2, body=b"second"))
        return command.reply()


async def test_answers_find_their_requests(link):
    connection = await link(Service().router)
    commands = [Command(ECHO, fields={"n": str(n)}, body=b"%d" % n) for n in range(200)]
    answers = await asyncio.gather(*map(connection.request, commands))
    assert [(answer.body, answer.fields["n"]) for answer in answers] == [(b"%d" % n, str(n)) for n in range(200)]
    assert all(answer.is_response and answer.code == 0 for answer in answers)


async def test_later_answers_do_not_hold_up_others(link):
    service = Service()
    connection = await link(service.router)
    slow = asyncio.ensure_future(connection.request(Command(SLOW)))
    assert (await connection.request(Command(ECHO, body=b"quick"))).body == b"quick"
    assert not slow.done()
    service.release.set()
    assert (await slow).body == b"slow"


@pytest.mark.parametrize(
    ("code", "expected", "remark"),
    [
        (REFUSE, 17, "there is no such topic"),
        (CRASH, ResponseCode.SYSTEM_ERROR, "ZeroDivisionError"),
        (MALFORMED, ResponseCode.INVALID_PARAMETER, "three bytes missing"),
        (4711, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 4711 not supported"),
    ],
)
async def test_failures_become_answers(link, code, expected, remark):
    connection = await link(Service().router)
    answer = await connection.request(Command(code))
    assert answer.code == expected
    assert remark in answer.remark
    assert (await connection.request(Command(ECHO, body=b"still there"))).body == b"still there"


async def test_a_handler_that_is_no_router_may_fail_too(link):
    def handler(peer, command):
        raise Refused(2, "busy")

    connection = await link(handler)
    answer = await connection.request(Command(1))
    assert (answer.code, answer.remark) == (2, "busy")


async def test_time_limit_and_late_answer(link):
    service = Service()
    connection = await link(service.router)
    with pytest.raises(RequestTimeout, match="request 102 got no answer"):
        await connection.request(Command(SLOW), timeout_ms=20)
    service.release.set()
    assert (await connection.request(Command(ECHO))).code == 0
    assert connection._calls.late_answers == 1


async def test_one_way_gets_no_answer_and_keeps_order(link):
    service = Service()
    connection = await link(service.router)
    for n in range(5):
        connection.oneway(Command(ECHO, body=b"%d" % n))
    await connection.request(Command(ECHO))
    assert service.oneways == [b"0", b"1", b"2", b"3", b"4"]
    assert connection._calls.late_answers == 0


async def test_pushes_come_in_order_before_the_answer_sent_after_them(link, caplog):
    connection = await link(Service().router)
    pushes = []
    connection.on_push(lambda command: 1 // 0)
    connection.on_push(lambda command: pushes.append(command.body))
    with caplog.at_level(logging.ERROR, "remoting"):
        await connection.request(Command(PUSH))
    assert pushes == [b"first", b"second"]
    assert "a callback failed on push 9003" in caplog.text


async def test_close_by_the_client(link):
    service = Service()
    connection = await link(service.router)
    await connection.request(Command(ECHO))
    reasons = []
    connection.on_close(reasons.append)
    waiting = asyncio.ensure_future(connection.request(Command(SILENT)))
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ConnectionLost):
        await waiting
    assert connection.closed
    assert reasons == ["closed by this side"]
    await service.closed.get()
    with pytest.raises(ConnectionLost):
        await connection.request(Command(ECHO))
    with pytest.raises(ConnectionLost):
        connection.oneway(Command(ECHO))
    service.peers[0].send(Command(9003))  # a client that has left is not an error
    late = asyncio.Queue()
    connection.on_close(late.put_nowait)
    service.peers[0].on_close(late.put_nowait)
    await late.get()
    await late.get()
    await connection.close()


async def test_close_by_the_server(link):
    connection = await link(Service().router)
    gone = asyncio.Queue()
    connection.on_close(gone.put_nowait)
    with pytest.raises(ConnectionLost):
        await connection.request(Command(KICK))
    await gone.get()
    assert connection.closed


async def test_what_was_sent_before_the_close_arrives(link):
    def handler(peer, command):
        peer.send(command.reply(body=b"last words"))
        peer.close("done")

    connection = await link(handler)
    assert (await connection.request(Command(1))).body == b"last words"


async def test_requests_wait_while_too_many_bytes_are_in_flight(link):
    service = Service()
    connection = await link(service.router, in_flight_bytes_max=10_000)
    bodies = [bytes(4_000) for _ in range(6)]
    requests = [asyncio.ensure_future(connection.request(Command(SLOW, body=body))) for body in bodies]
    while len(connection._calls) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(connection._calls) == 2
    service.release.set()
    assert [answer.body for answer in await asyncio.gather(*requests)] == [b"slow"] * 6
    assert connection._calls.in_flight_bytes == 0


async def test_answers_still_due_end_with_the_client(link):
    service = Service()
    connection = await link(service.router)
    await connection.request(Command(ECHO))
    with pytest.raises(RequestTimeout):
        await connection.request(Command(SLOW), timeout_ms=10)
    peer = service.peers[0]
    async with asyncio.timeout(20):
        while len(peer.attributes.get("pending replies", ())) != 1:  # over a socket it may come after the limit
            await asyncio.sleep(0.001)
    await connection.close()
    await service.closed.get()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not peer.attributes["pending replies"]


async def test_the_twin_is_local_and_shares_bodies():
    seen = []

    def handler(peer, command):
        seen.append((peer.address, peer.loopback, peer.writable, command.body))
        return command.reply(body=command.body)

    connection = inprocess.connect(handler)
    body = b"x" * 100
    answer = await connection.request(Command(1, body=body))
    assert answer.body is body
    assert seen == [("in-process", True, True, body)]
    assert connection.writable
    await connection.close()


async def test_the_twin_runs_nothing_inside_the_senders_call():
    seen = []
    connection = inprocess.connect(lambda peer, command: seen.append(command.body))
    connection.oneway(Command(1, body=b"a"))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [b"a"]
    await connection.close()
    gc.collect()
