"""A real broker process: what it acknowledged before kill -9 is there after the restart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.append_body import decode_append_reply
from remoting.protocol.bodies.pull_body import (
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.bodies.session_body import (
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.bodies.sink_body import CommitBatch, Ledger, LedgerState, StageHandle
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.record import FLAG_RETAIN, iter_records

pytestmark = pytest.mark.processes
ROOT = Path(__file__).parents[2]


class Process:
    """One `python -m broker` on a data directory."""

    def __init__(self, directory: Path, **environment: str) -> None:
        arguments = [
            sys.executable,
            "-m",
            "broker",
            f"--data-directory={directory}",
            "--port=0",
            "--admin-port=0",
            "--controllers=",
            "--store.segment-size-bytes=16777216",
            "--store.free-space-bytes-min=0",
            "--store.ballast-size-bytes=0",
        ]
        self.process = subprocess.Popen(
            arguments, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        line = self.process.stdout.readline()
        self.ports = json.loads(line) if line else {}

    def connect(self) -> BlockingConnection:
        return BlockingConnection("127.0.0.1", self.ports["remoting"], 10_000)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    started: list[Process] = []

    def make(**environment: str) -> Process:
        started.append(Process(tmp_path / "data", **environment))
        return started[-1]

    yield make
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.process.kill()
        process.process.wait(10)
        process.process.stdout.close()


def ask(connection: BlockingConnection, code: int, body: bytes = b"", **fields: str) -> bytes:
    reply = connection.request(Command(code, fields=fields, body=body))
    assert reply.code == 0, reply.remark
    return reply.body


def entries(first: int, count: int) -> bytes:
    return b"".join([encode_mqtt_image(b"plant/1", b"%d" % n, 1, 1, b"d") for n in range(first, first + count)])


def bodies(connection: BlockingConnection, topic: str) -> list[bytes]:
    request = encode_bounds_request(QueueBoundsRequest(filter=topic))
    light = decode_bounds_reply(ask(connection, RequestCode.QUEUE_BOUNDS, request)).light
    found: list[bytes] = []
    while len(found) < light.max:
        body = encode_range_pull(light.id, len(found), light.max, 1_000_000)
        pulled = decode_range_pull_reply(ask(connection, RequestCode.RANGE_PULL, body))
        found += [bytes(view.body) for view in iter_records(pulled.blob)]
    return found


def test_everything_acknowledged_before_kill_9_is_there_in_order(start) -> None:
    broker = start()
    connection = broker.connect()
    acknowledged = 0
    for _ in range(40):
        end, placed = decode_append_reply(ask(connection, RequestCode.APPEND_MANY, entries(acknowledged, 100)))
        assert end > 0
        acknowledged += len(placed)
    connection.send(Command(RequestCode.APPEND_MANY, body=entries(acknowledged, 100)))
    broker.kill()
    found = bodies(start().connect(), "plant/1")
    assert found[:acknowledged] == [b"%d" % number for number in range(acknowledged)]
    assert len(found) in (acknowledged, acknowledged + 100)


def test_session_retained_and_ledger_survive_kill_9(start) -> None:
    broker = start()
    connection = broker.connect()
    opening = encode(SessionOpen("c", False, "anna", 600))
    opened = decode(SessionOpened, ask(connection, RequestCode.SESSION_OPEN, opening))
    subscribe = encode(SubscribeRequest("c", opened.epoch, True, [("plant/+", 1)]))
    subscribed = decode(Subscribed, ask(connection, RequestCode.SUBSCRIBE, subscribe))
    retained = b"".join([encode_mqtt_image(b"plant/state", b"on", FLAG_RETAIN | 1, 1, b"d")])
    ask(connection, RequestCode.APPEND_MANY, retained)
    staged = b"".join([encode_mqtt_image(b"out/x", b"row", 1, 1, b"s")])
    ask(connection, RequestCode.STAGE, staged, sink="s", batch="7", partition="0", attempt="0")
    ask(connection, RequestCode.COMMIT_BATCH, encode(CommitBatch("s", 7, [StageHandle(0, 0, 1)])))
    ask(connection, RequestCode.STAGE, staged, sink="s", batch="8", partition="0", attempt="0")
    broker.kill()

    connection = start().connect()
    again = decode(SessionOpened, ask(connection, RequestCode.SESSION_OPEN, opening))
    assert again.present
    assert again.epoch > opened.epoch
    assert [(s.filter, s.queue_id, s.offset) for s in again.subscriptions] == [
        ("plant/+", subscribed.results[0].queue_id, 0)
    ]
    subscribe = encode(SubscribeRequest("c", again.epoch, True, [("+/state", 1)]))
    assert len(decode(Subscribed, ask(connection, RequestCode.SUBSCRIBE, subscribe)).retained[0][1]) == 1
    assert decode(LedgerState, ask(connection, RequestCode.LEDGER, encode(Ledger("s")))).last_batch == 7
    assert bodies(connection, "out/x") == [b"row"]
    ask(connection, RequestCode.COMMIT_BATCH, encode(CommitBatch("s", 8, [StageHandle(0, 0, 1)])))
    assert bodies(connection, "out/x") == [b"row", b"row"]


def test_a_failing_disk_acknowledges_nothing_and_the_restart_has_the_rest(start) -> None:
    broker = start(LIGHTMQ_FAULTS="log.fsync=EIO@8*0")
    connection = broker.connect()
    acknowledged = 0
    while connection.request(Command(RequestCode.APPEND_MANY, body=entries(acknowledged, 10))).code == 0:
        acknowledged += 10
        assert acknowledged < 1_000
    assert broker.process.wait(20) == 1, "it ends by itself: only a restart reads what is on the disk"
    found = bodies(start().connect(), "plant/1")
    assert len(found) >= acknowledged > 0


def test_a_clean_stop_and_a_wrong_option(start, tmp_path) -> None:
    assert start().stop() == 0
    wrong = subprocess.run(
        [sys.executable, "-m", "broker", "--prot=1"], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert wrong.returncode == 2
    assert "port" in wrong.stderr
