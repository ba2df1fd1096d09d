"""A batch of Spark staged at two broker groups: killed between their commits it is completed, exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import (
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_range_pull,
)
from remoting.protocol.bodies.sink_body import Ledger, LedgerState, decode, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import iter_records
from remoting.transport.failures import checked
from tests.processes.rig import ROOT, Process

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(900)]
ROWS = 160_000
DEADLINE_S = 240.0
QUEUES = 2


class Groups:
    """A controller and two broker groups with the topic `orders`."""

    def __init__(self, folder: Path) -> None:
        self.controller = Process(folder / "controller", ["controller", "--data", str(folder / "c")], "remoting")
        self.controller.start()
        self.server = f"127.0.0.1:{self.controller.port}"
        self.brokers = [self._broker(folder, name) for name in ("group-a", "group-b")]

    def _broker(self, folder: Path, name: str) -> Process:
        small = "broker.limits.commit_group_bytes_max=65536"
        chosen = ["--controllers", self.server, "--set", f"broker.broker_name={name}", "--set", small]
        broker = Process(folder / name, ["broker", "--data", str(folder / f"{name}-data"), *chosen], "remoting")
        broker.start()
        fields = topic_fields("orders", QUEUES)
        self.ask(broker, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
        return broker

    @staticmethod
    def ask(broker: Process, command: Command) -> bytes:
        with BlockingConnection.dial(f"127.0.0.1:{broker.port}", 30_000) as connection:
            return checked(connection.request(command)).body

    def bounds(self, broker: Process) -> list[tuple[int, int]]:
        """(queue id, visible rows) of the topic's queues."""
        asked = encode_bounds_request(QueueBoundsRequest(topics=["orders"]))
        reply = decode_bounds_reply(self.ask(broker, Command(RequestCode.QUEUE_BOUNDS, body=asked)))
        return [(queue.id, queue.max) for queue in reply.queues]

    def visible(self, broker: Process) -> int:
        return sum(rows for _queue, rows in self.bounds(broker))

    def last_batch(self, broker: Process) -> int:
        body = encode(Ledger("app"))
        return decode(LedgerState, self.ask(broker, Command(RequestCode.LEDGER, body=body))).last_batch

    def rows(self) -> list[int]:
        """Every number that readers get."""
        found = []
        for broker in self.brokers:
            for queue, end in self.bounds(broker):
                at = 0
                while at < end:
                    body = encode_range_pull(queue, at, end, 1 << 22)
                    pulled = decode_range_pull_reply(self.ask(broker, Command(RequestCode.RANGE_PULL, body=body)))
                    found += [int(bytes(record.body)) for record in iter_records(pulled.blob)]
                    at = pulled.next_offset
        return found

    def stop(self) -> None:
        for process in (*self.brokers, self.controller):
            process.kill_if_running()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    found = Groups(tmp_path)
    yield found
    found.stop()


def driver(groups: Groups, log: Path, version: int) -> subprocess.Popen[bytes]:
    """A Spark program in a process group of its own."""
    program = [sys.executable, "-m", "tests.processes.two_groups_driver", "--server", groups.server]
    with log.open("ab") as said:
        return subprocess.Popen(
            [*program, "--rows", str(ROWS), "--version", str(version)],
            stdout=said, stderr=said, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip


def until(condition, running: subprocess.Popen[bytes], log: Path) -> None:  # type: ignore[no-untyped-def]
    """Wait for an effect of the driver."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert running.poll() is None, log.read_text()[-3_000:]
        assert time.monotonic() < deadline, log.read_text()[-3_000:]


def test_a_driver_killed_between_two_commits(groups: Groups, tmp_path: Path) -> None:
    """The home group has committed, the other shows nothing yet; the same write again shows the rest, nothing twice."""
    home, other = groups.brokers
    log = tmp_path / "driver.log"
    first = driver(groups, log, 1)
    try:
        until(lambda: groups.visible(home) > 0, first, log)
        # Its commit runs in many small groups, after the other group, which is stopped now, has prepared.
        assert other.process is not None
        os.kill(other.process.pid, signal.SIGSTOP)
        until(lambda: groups.last_batch(home) == 1, first, log)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(30)
        assert other.process is not None
        os.kill(other.process.pid, signal.SIGCONT)
    other.kill()
    other.start()
    shown = groups.visible(home)
    assert 0 < shown < ROWS
    assert (groups.last_batch(home), groups.last_batch(other), groups.visible(other)) == (1, -1, 0)
    again = driver(groups, log, 1)
    assert again.wait(DEADLINE_S) == 0, log.read_text()[-3_000:]
    assert sorted(groups.rows()) == list(range(ROWS))
    assert groups.visible(home) == shown, "nothing was written again"
    assert (groups.last_batch(home), groups.last_batch(other)) == (1, 1)
