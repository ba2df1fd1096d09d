"""Spark's process as the demo sees it: started, listened to, given orders, and started again when it was lost.

It speaks JSON lines: `step`, `ready` after the first query's first batch, `complete` after the last one's, `batch`,
`restarted`, `failed`, `drained`, `stopped`. Invariant: every progress lies in checkpoints, so a process that has ended
is replaced without losing or repeating a row. Thread rule: one reader thread writes the fields; `order` waits for its
answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remoting import clock

LATER = "--later"
"""Alone on the command line: start Java at once, and read the arguments from standard input, a JSON list in a line."""
STOP_TIMEOUT_S, ABANDON_S_MAX, POLL_S = 30.0, 5.0, 0.1


class SparkFailed(RuntimeError):
    """The driver ended or a query failed; the text is Spark's message."""


@dataclass(slots=True)
class QueryProgress:
    """What one query did so far."""

    batch: int = -1
    rows: int = 0
    total: int = 0
    duration_ms: float = 0.0


REVIVALS_MAX = 3
"""A machine that ends Spark's process more often than that has another problem."""


class SparkDriver:
    """`lightmq.demo.query`, or another program that serves as it does, as a child process."""

    def __init__(self, log_path: Path, program: Sequence[str] = ("-m", "lightmq.demo.query")) -> None:
        self._log_path = log_path
        self._program = tuple(program)
        self._child: subprocess.Popen[str] | None = None
        self._arguments: tuple[str, ...] = ()
        self.progress: dict[str, QueryProgress] = {}
        self._is_prepared = False
        self._before: dict[str, int] = {}
        """Rows of each query in processes that have ended."""
        self.revivals = 0
        self.version = ""
        self.step = "starting its driver process"
        self.restarts: list[str] = []
        self.failure: str | None = None
        self._is_lost = False
        """Whether the process has ended, or has lost its Java: no query can be started in it again."""
        self._said = threading.Condition()
        self._heard: dict[str, int] = {}

    def prepare(self) -> None:
        """Start a driver that brings up its Java now and is given its arguments by `start`."""
        self._launch((LATER,))
        self._is_prepared = True

    def start(self, arguments: Sequence[str]) -> None:
        """Start the driver; returns at once. Started again, it goes on from its checkpoints."""
        if self._is_prepared:
            self._is_prepared = False
            if not self.count_of("ended") and self._tell(json.dumps(list(arguments))):
                with self._said:
                    self._arguments = tuple(arguments)
                return
        self._launch(arguments)

    def _tell(self, line: str) -> bool:
        """Write a line to the process; False when it has ended."""
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def _launch(self, arguments: Sequence[str]) -> None:
        with self._log_path.open("a") as log:
            child = subprocess.Popen(
                [sys.executable, *self._program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        with self._said:
            self._child, self._arguments = child, tuple(arguments)
            self._heard, self.failure, self._is_lost = {}, None, False
            self._before = {name: done.total for name, done in self.progress.items()}
        threading.Thread(target=self._read, args=(child,), daemon=True).start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                self._hear(child, json.loads(line))
        self._hear(child, {"event": "ended"})

    def _hear(self, child: subprocess.Popen[str], event: dict[str, object]) -> None:
        kind = str(event["event"])
        with self._said:
            if child is not self._child:
                return  # the last words of one that was replaced
            if kind == "batch":
                name = str(event["query"])
                self.progress[name] = QueryProgress(
                    batch=int(str(event["batch"])),
                    rows=int(str(event["rows"])),
                    total=self._before.get(name, 0) + int(str(event["total"])),
                    duration_ms=float(str(event["duration_ms"])),
                )
            elif kind == "ready":
                self.version = str(event["version"])
            elif kind == "step":
                self.step = str(event["text"])
            elif kind == "restarted":
                self.restarts.append(f"query {event['query']}: {event['text']}")
            elif kind == "failed":
                self.failure = self.failure or f"query {event['query']}: {event['error']}"
                self._is_lost = self._is_lost or bool(event.get("lost"))
            self._heard[kind] = self._heard.get(kind, 0) + 1
            self._said.notify_all()

    @property
    def status(self) -> int | None:
        """Exit status of the driver that has ended."""
        assert self._child is not None
        return self._child.wait()

    def count_of(self, kind: str) -> int:
        """How often the driver reported an event of this kind."""
        with self._said:
            return self._heard.get(kind, 0)

    def check(self) -> None:
        """Raise if the driver is in trouble."""
        if self.failure is None and self.count_of("ended") and not self.count_of("stopped"):
            self.failure = f"its driver process {how_it_ended(self.status)}; what it wrote is in {self._log_path}"
            self._is_lost = True
        if self.failure is not None:
            raise SparkFailed(self.failure)

    @property
    def is_warm(self) -> bool:
        """Whether every query has made a batch; `ready` is said after the first one's."""
        return self.count_of("complete") > 0 and self.failure is None

    def revive(self) -> str:
        """Start the process again if it has ended, or its Java has; return a sentence, empty when it runs.

        Raises SparkFailed when that does not help: a query was given up, or it was started too often.
        """
        try:
            self.check()
        except SparkFailed as failure:
            if not self._is_lost or self.revivals >= REVIVALS_MAX:
                raise
            self.revivals += 1
            why = str(failure).partition(";")[0] if self.count_of("ended") else "its Java process has ended"
            self.kill()
            self.start(self._arguments)
            bound = f"start {self.revivals} of at most {REVIVALS_MAX}"
            return f"Spark: {why}. It starts again and goes on from its checkpoints ({bound})."
        return ""

    def order(self, word: str, answer: str, timeout_s: float) -> None:
        """Send `drain` or `stop` and wait for the answer."""
        before = self.count_of(answer)
        if not self._tell(word):
            self.check()
        with self._said:
            self._said.wait_for(
                lambda: (
                    self._heard.get(answer, 0) > before or bool(self._heard.get("ended")) or self.failure is not None
                ),
                timeout_s,
            )
        self.check()
        if self.count_of(answer) == before:
            raise SparkFailed(f"no '{answer}' from Spark in {timeout_s:.0f} s")

    def abandon(self) -> None:
        """End it within seconds, whatever it does: nothing of it is wanted any more."""
        if self._child is None:
            return
        deadline = clock.monotonic_s() + ABANDON_S_MAX
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGTERM)
            while clock.monotonic_s() < deadline:
                self._child.poll()
                os.killpg(self._child.pid, 0)  # its Java removes its files and ends
                time.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        """End the driver, its Java and its workers by kill -9, as a failing machine would."""
        assert self._child is not None
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def dismiss(self) -> None:
        """Order it to end; what it still tidies up for the next start goes on meanwhile, see `is_tidying`."""
        if self._child is not None and self._child.poll() is None and not self.count_of("stopped"):
            try:
                self.order("stop", "stopped", STOP_TIMEOUT_S)
            except SparkFailed:
                self.kill()

    @property
    def is_tidying(self) -> bool:
        """Whether it was dismissed and has not ended."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """End the driver, by word if it listens, by signal if not."""
        self.dismiss()
        if self._child is None:
            return
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._child.wait()


def how_it_ended(status: int | None) -> str:
    """Say it for people: a signal by its name."""
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
