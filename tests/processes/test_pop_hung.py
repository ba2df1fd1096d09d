"""A consumer of POP that hangs: it pops, reads no answers and acknowledges nothing. Nobody else waits for it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.addresses import split_address
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import encode_frame
from remoting.protocol.records.stored_message import iter_stored
from tests.processes.rig import Installation, no_traceback

pytestmark = pytest.mark.processes
HUNG_MS = 8_000
BODY_BYTES = 64 * 1024
HUNG_POPS = 20
"""Answers to them are larger than what socket buffers take."""
QUEUED = 80


def sending(number: int) -> Command:
    fields = {"a": "p", "b": "jobs", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0", "g": "5", "h": "0",
              "i": ""}  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number + bytes(BODY_BYTES))


def popping(count: int, invisible_ms: int, poll_ms: int, opaque: int = 0) -> Command:
    fields = {
        "consumerGroup": "workers", "topic": "jobs", "queueId": "-1", "maxMsgNums": str(count),
        "pollTime": str(poll_ms), "invisibleTime": str(invisible_ms), "bornTime": "0", "initMode": "0",
    }  # fmt: skip
    return Command(RequestCode.POP_MESSAGE, fields=fields, opaque=opaque)


def popped(connection: BlockingConnection, poll_ms: int) -> set[int]:
    """The numbers of the messages of one pop, which stay in flight for an hour."""
    answer = connection.request(popping(32, 3_600_000, poll_ms))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return set()
    return {int(message.body.rstrip(b"\0")) for message in iter_stored(checked(answer).body)}


def test_nobody_waits_for_a_consumer_that_hangs(tmp_path: Path) -> None:
    server = Installation(tmp_path / "data")
    server.start()
    try:
        with BlockingConnection.dial(server.address, 60_000) as connection:
            for number in range(QUEUED):
                checked(connection.request(sending(number)))
            with socket.create_connection(split_address(server.address)) as hung:
                hung.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                begun, found = time.monotonic(), set[int]()
                hung.sendall(b"".join(encode_frame(popping(2, HUNG_MS, 0, at + 1)) for at in range(HUNG_POPS)))
                while len(found) < QUEUED - 2 * HUNG_POPS:
                    found |= popped(connection, 1_000)
                checked(connection.request(sending(QUEUED)))
                while QUEUED not in found:
                    found |= popped(connection, 1_000)
                assert time.monotonic() < begun + HUNG_MS / 1_000, "before the hung one's time is over"
                while len(found) <= QUEUED:
                    found |= popped(connection, 2 * HUNG_MS)
                assert time.monotonic() > begun + HUNG_MS / 1_000, "it had some"
        server.end(15)
        no_traceback(server)
    finally:
        server.kill_if_running()
