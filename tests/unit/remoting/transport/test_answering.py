"""Results and failures of handlers become exactly one reply."""

from __future__ import annotations

import logging

import pytest

from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.transport.answering import answer


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


def test_only_what_nobody_expected_is_logged_with_its_traceback(caplog):
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
