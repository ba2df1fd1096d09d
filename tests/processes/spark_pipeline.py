"""A pipeline with two ends, and what a test needs to kill any part of it: source broker, Spark, sink broker, devices.

    publisher (QoS 2) → source broker → Spark, checkpointed → sink broker → one device with QoS 2, one with QoS 1

The publisher stays a little ahead of the QoS 2 device, so that there are always messages in flight. Every wait restarts
the Spark driver when it has ended. Thread rule: one thread; the clients have threads of their own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from lightmq.demo.accounting import bounds
from remoting.client.blocking import BlockingConnection
from tests.processes.exact_client import ExactClient
from tests.processes.pipeline_driver import OUTPUTS
from tests.processes.rig import ROOT, Client, Installation, no_traceback

AHEAD = 2_000
"""Messages the publisher may be ahead of the device."""
WAIT_S = 300.0
LOOK_S = 0.2


class Pipeline:
    """All parts on one machine, below one folder."""

    def __init__(self, folder: Path, master: str) -> None:
        self.source = Installation(folder / "source")
        # Small groups: a commit takes several, and a kill may fall between two of them.
        self.sink = Installation(folder / "sink", "--set", "broker.limits.commit_group_bytes_max=65536")
        self._folder, self._master = folder, master
        self.driver: subprocess.Popen[str] | None = None
        self.starts = 0
        self.failures = 0
        """How often the driver ended without being killed."""
        self._draining = False

    def start(self) -> None:
        """Start everything; returns when the first rows have arrived."""
        self.source.start()
        self.sink.start()
        self.device = ExactClient("device", lambda: self.sink.port, subscribe_to="out/#").run()
        self.device.until(lambda: self.device.subscribed)
        self.repeating = Client(self.sink, "repeating", clean=False)
        self.repeating.subscribe(("out/#", 1))
        self.publisher = ExactClient("publisher", lambda: self.source.port, publish_to="in/x")
        self.publisher.limit = AHEAD
        self.publisher.run()
        self.start_driver()
        self.flows(1)

    def start_driver(self) -> None:
        """Start Spark, from its checkpoint if there is one."""
        self.starts += 1
        command = [sys.executable, "-m", "tests.processes.pipeline_driver", "--master", self._master]
        command += ["--source", self.source.address, "--sink", self.sink.address]
        command += ["--checkpoint", str(self._folder / "checkpoint")]
        with (self._folder / f"driver-{self.starts}.log").open("w") as log:
            self.driver = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True
            )

    def below_driver(self, kind: str) -> list[psutil.Process]:
        """Processes of Spark by kind: `python` (workers and planners), `executor` (JVMs of their own)."""
        assert self.driver is not None
        found = []
        for process in self.family():
            line = " ".join(process.info["cmdline"] or ())
            if (kind == "executor" and "CoarseGrainedExecutorBackend" in line) or (
                kind == "python" and "pyspark" in line and "java" not in process.info["name"]
            ):
                found.append(process)
        return found

    def kill_driver(self) -> None:
        """kill -9 of the driver, its JVM, its executors and its workers, the driver first."""
        assert self.driver is not None
        family = self.family()
        self.driver.kill()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.driver.wait()

    def family(self) -> list[psutil.Process]:
        """Every process below the driver."""
        assert self.driver is not None
        try:
            found = psutil.Process(self.driver.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        alive = []
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker that ended between the two calls
                process.info = process.as_dict(["cmdline", "name"])
                alive.append(process)
        return alive

    # -- waiting -------------------------------------------------------------------------------------------------------

    def flows(self, count: int) -> None:
        """Return when the device has received this many more messages."""
        wanted = len(self.device.taken) + count
        self.until(lambda: len(self.device.taken) >= wanted)

    def until(self, condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Wait for something the device receives; keeps the publisher and the driver running."""
        deadline = time.monotonic() + wait_s
        while True:
            with self.device.changed:
                if self.device.changed.wait_for(condition, LOOK_S):
                    return
            assert not self.device.failure, self.device.failure
            assert time.monotonic() < deadline, self.story()
            if not self._draining:
                self.publisher.limit = max(self.publisher.limit or 0, len(self.device.taken) + AHEAD)
            if self.driver is not None and self.driver.poll() is not None:
                self.failures += 1
                self.start_driver()

    def story(self) -> str:
        """The state of every part."""
        log = self._folder / f"driver-{self.starts}.log"
        return f"{self.device.story()}\n{self.publisher.story()}\n{log.read_text()[-3_000:]}"

    # -- the end -------------------------------------------------------------------------------------------------------

    def account(self) -> tuple[int, int]:
        """Drain everything and compare: (rows of the source, repetitions the QoS 1 device saw).

        Every number the publisher sent is stored once at either end, and the QoS 2 device received it once.
        """
        self._draining = True
        limit = self.publisher.limit or 0
        self.publisher.until(lambda: self.publisher.completed >= limit)
        total = self.publisher.next_number
        self.until(lambda: len(self.device.taken) >= total)
        self.repeating.until(lambda: len({bytes(one.payload) for one in self.repeating.messages}) >= total)
        taken = Counter(self.device.taken)
        assert taken == dict.fromkeys(range(total), 1), [number for number, count in taken.items() if count != 1]
        stored = (self._stored(self.source, ["in/x"]), self._stored(self.sink, [f"out/{n}" for n in range(OUTPUTS)]))
        assert stored == (total, total), (stored, total)
        assert not self.device.lost_session
        no_traceback(self.source, self.sink)
        seen = Counter(int(one.payload) for one in self.repeating.messages)
        assert seen.keys() == set(range(total))
        return total, seen.total() - total

    @staticmethod
    def _stored(broker: Installation, topics: list[str]) -> int:
        """Messages in the queues of these MQTT topics."""
        with BlockingConnection.dial(broker.address) as connection:
            queues = [bounds(connection, {"filter": topic})["light"] for topic in topics]
        return sum(queue["max"] for queue in queues if queue)

    def close(self) -> None:
        """End whatever is still running."""
        for name in ("publisher", "device"):
            if hasattr(self, name):
                getattr(self, name).stop()
        if hasattr(self, "repeating"):
            self.repeating.vanish()
        if self.driver is not None and self.driver.poll() is None:
            self.kill_driver()
        for broker in (self.source, self.sink):
            broker.kill_if_running()
