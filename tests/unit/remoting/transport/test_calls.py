"""Requests in flight: each future ends once, bytes are returned, the queue in front of the limit moves on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.transport.calls import OPAQUE_MAX, REQUEST_OVERHEAD_BYTES, Calls, answer
from remoting.transport.failures import ConnectionLost, RequestTimeout


def start(calls, sent, body=b"", timeout_ms=1_000):
    return asyncio.ensure_future(calls.call(Command(1, body=body), timeout_ms, sent.append))


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_each_answer_ends_its_own_request():
    calls, sent = Calls("there:1", 1_000_000), []
    first, second = start(calls, sent), start(calls, sent)
    await settle()
    assert len(calls) == 2
    assert calls.in_flight_bytes == 2 * REQUEST_OVERHEAD_BYTES
    calls.answer(sent[1].reply(body=b"2"))
    calls.answer(sent[0].reply(body=b"1"))
    assert [(await first).body, (await second).body] == [b"1", b"2"]
    assert (len(calls), calls.in_flight_bytes, calls.late_answers) == (0, 0, 0)


async def test_an_answer_twice_is_late():
    calls, sent = Calls("there:1", 1_000), []
    request = start(calls, sent)
    await settle()
    calls.answer(sent[0].reply())
    calls.answer(sent[0].reply())
    await request
    calls.answer(sent[0].reply())
    assert calls.late_answers == 2


async def test_time_limit_holds_while_waiting_for_room():
    calls, sent = Calls("there:1", 1_000), []
    first = start(calls, sent, bytes(900))
    await settle()
    second = start(calls, sent, bytes(900), timeout_ms=10)
    third = start(calls, sent, bytes(900))
    with pytest.raises(RequestTimeout, match="there:1 within 10 ms"):
        await second
    assert len(sent) == 1
    calls.answer(sent[0].reply())
    await first
    await settle()
    calls.answer(sent[1].reply())
    await third


async def test_the_queue_keeps_its_order_and_small_ones_go_together():
    calls, sent = Calls("there:1", 2_000), []
    big = start(calls, sent, bytes(1_900))
    await settle()
    waiting = [start(calls, sent, body) for body in (bytes(1_800), b"a", b"b")]
    await settle()
    assert len(sent) == 1
    calls.answer(sent[0].reply())
    await big
    await settle()
    assert [len(command.body) for command in sent] == [1_900, 1_800]
    calls.answer(sent[1].reply())
    await settle()
    assert [command.body for command in sent[2:]] == [b"a", b"b"]
    for command in sent[2:]:
        calls.answer(command.reply())
    await asyncio.gather(*waiting)


async def test_a_body_above_the_limit_goes_alone():
    calls, sent = Calls("there:1", 10), []
    request = start(calls, sent, bytes(1_000))
    small = start(calls, sent, b"x")
    await settle()
    assert [len(one.body) for one in sent] == [1_000]
    calls.answer(sent[0].reply())
    await request
    await settle()
    assert [len(one.body) for one in sent] == [1_000, 1]
    calls.answer(sent[1].reply())
    await small


async def test_cancelled_requests_leave_no_trace():
    calls, sent = Calls("there:1", 1_000), []
    first = start(calls, sent, bytes(900))
    await settle()
    waiting, last = start(calls, sent, bytes(900)), start(calls, sent, bytes(900))
    await settle()
    waiting.cancel()
    first.cancel()
    await settle()
    assert len(sent) == 2
    calls.answer(sent[1].reply())
    await last
    assert (len(calls), calls.in_flight_bytes) == (0, 0)


async def test_the_end_of_the_connection_ends_all():
    calls, sent = Calls("there:1", 1_000), []
    requests = [start(calls, sent, bytes(900)), start(calls, sent, bytes(900))]
    await settle()
    calls.fail("cable cut")
    calls.fail("a second reason")
    for outcome in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(outcome, ConnectionLost)
        assert "there:1 is closed: cable cut" in str(outcome)
    with pytest.raises(ConnectionLost, match="cable cut"):
        await calls.call(Command(1), 1_000, sent.append)


async def test_numbers_wrap_and_skip_those_in_use():
    calls, sent = Calls("there:1", 1_000_000), []
    request = start(calls, sent)
    await settle()
    calls._opaque = OPAQUE_MAX - 1
    assert [calls.next_opaque(), calls.next_opaque()] == [OPAQUE_MAX, 2]
    calls.answer(sent[0].reply())
    await request


async def test_a_failing_transmission_leaves_no_trace():
    calls = Calls("there:1", 1_000)

    def broken(command):
        raise ConnectionLost("no")

    with pytest.raises(ConnectionLost):
        await calls.call(Command(1), 1_000, broken)
    assert (len(calls), calls.in_flight_bytes) == (0, 0)


async def test_begun_requests_end_in_their_callbacks() -> None:
    """By the answer, by the end of the connection; their bytes leave the count."""
    calls, sent, told = Calls("there:1", 1_000_000), [], []
    for _ in range(2):
        calls.begin(Command(1, body=b"x" * 10), 1_000, sent.append, lambda *ended: told.append(ended))
    assert len(sent) == 2
    calls.answer(sent[0].reply(body=b"yes"))
    assert [(ended[0].body, ended[1]) for ended in told] == [(b"yes", None)]
    calls.fail("gone")
    assert told[1][0] is None
    assert isinstance(told[1][1], ConnectionLost)
    assert calls.in_flight_bytes == len(calls) == 0
    calls.answer(sent[0].reply())
    assert calls.late_answers == 1


async def test_a_begun_request_without_an_answer_times_out() -> None:
    """Within its time limit and a sweep."""
    calls, told = Calls("there:1", 1_000_000), asyncio.Queue()
    calls.begin(Command(1), 1, lambda _command: None, lambda *ended: told.put_nowait(ended))
    response, error = await asyncio.wait_for(told.get(), 10)
    assert response is None
    assert isinstance(error, RequestTimeout)
    assert len(calls) == 0


async def test_a_begun_request_waits_for_room() -> None:
    """Like any other; a callback that raises is reported and loses no other answer."""
    calls, sent, told = Calls("there:1", 1_000), [], []
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))

    def broken(*_ended: object) -> None:
        raise ValueError("broken")

    calls.begin(Command(1, body=bytes(900)), 1_000, sent.append, broken)
    calls.begin(Command(2, body=bytes(900)), 1_000, sent.append, lambda *ended: told.append(ended))
    await asyncio.sleep(0)
    assert [command.code for command in sent] == [1]
    calls.answer(sent[0].reply())
    assert isinstance(reported[0], ValueError)
    for _ in range(5):
        await asyncio.sleep(0)
    calls.answer(sent[1].reply())
    for _ in range(5):
        await asyncio.sleep(0)
    assert told[0][1] is None


class Recorder:
    address = "10.0.0.1:5"
    loopback = False

    def __init__(self, broken_sends=0):
        self.sent = []
        self.broken_sends = broken_sends

    def send(self, command):
        if self.broken_sends:
            self.broken_sends -= 1
            raise LocalMisuse("a header too large")
        self.sent.append(command)


def failing(error):
    def handler(peer, command):
        raise error

    return handler


def test_a_reply_is_sent_and_none_is_not():
    peer = Recorder()
    answer(lambda peer, command: command.reply(body=b"x"), peer, Command(1, opaque=7))
    answer(lambda peer, command: None, peer, Command(1))
    assert [(reply.opaque, reply.body) for reply in peer.sent] == [(7, b"x")]


def test_one_way_gets_nothing_not_even_failures():
    peer = Recorder()
    answer(lambda peer, command: command.reply(), peer, Command(1, flag=2))
    answer(failing(Refused(1, "no")), peer, Command(1, flag=2))
    assert peer.sent == []


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (Refused(16, "not you"), 16, "not you"),
        (RemoteViolation("cut off"), 29, "request 5 is malformed: cut off"),
        (KeyError("topic"), 1, "KeyError: 'topic'"),
    ],
)
def test_failures(error, code, remark):
    peer = Recorder()
    answer(failing(error), peer, Command(5, opaque=9))
    assert [(reply.code, reply.remark, reply.opaque) for reply in peer.sent] == [(code, remark, 9)]


def test_only_unexpected_failures_are_logged_with_their_traceback(caplog):
    with caplog.at_level(logging.ERROR, "remoting"):
        answer(failing(Refused(16, "not you")), Recorder(), Command(5))
        assert caplog.records == []
        answer(failing(ValueError("what")), Recorder(), Command(5))
    assert caplog.records[0].exc_info is not None
    assert "request 5 of 10.0.0.1:5 failed" in caplog.text


def test_a_reply_that_cannot_be_encoded_becomes_a_failure():
    peer = Recorder(broken_sends=1)
    answer(lambda peer, command: command.reply(), peer, Command(5))
    assert peer.sent[0].code == 1
    assert "a header too large" in peer.sent[0].remark
