"""Starts the Spark driver process and keeps what it says: ready, batches, failures.

Invariant: one reader thread, the fields below are written by it alone; `drain` and `stop` wait for the driver's own
word.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 30.0


class SparkFailed(RuntimeError):
    """The driver ended or a query failed; the text is what Spark said."""


@dataclass(slots=True)
class QueryProgress:
    """What one query did so far."""

    batch: int = -1
    rows: int = 0
    total: int = 0
    duration_ms: float = 0.0


class SparkDriver:
    """One run of `lightmq.demo.query` as a child process."""

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._child: subprocess.Popen[str] | None = None
        self.progress: dict[str, QueryProgress] = {}
        self.version = ""
        self.step = "starting its driver process"
        self.restarts: list[str] = []
        self.failure: str | None = None
        self._said = threading.Condition()
        self._heard: dict[str, int] = {}

    def start(self, arguments: Sequence[str]) -> None:
        """Start the driver; returns at once."""
        with self._log_path.open("w") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "lightmq.demo.query", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._child,), daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the driver."""
        assert self._child is not None
        return self._child.pid

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                self._hear(json.loads(line))
        self._hear({"event": "ended"})

    def _hear(self, event: dict[str, object]) -> None:
        kind = str(event["event"])
        with self._said:
            if kind == "batch":
                self.progress[str(event["query"])] = QueryProgress(
                    batch=int(str(event["batch"])),
                    rows=int(str(event["rows"])),
                    total=int(str(event["total"])),
                    duration_ms=float(str(event["duration_ms"])),
                )
            elif kind == "ready":
                self.version = str(event["version"])
            elif kind == "step":
                self.step = str(event["text"])
            elif kind == "restarted":
                self.restarts.append(f"query {event['query']}: {event['text']}")
            elif kind == "failed" and self.failure is None:
                self.failure = f"query {event['query']}: {event['error']}"
            self._heard[kind] = self._heard.get(kind, 0) + 1
            self._said.notify_all()

    @property
    def status(self) -> int | None:
        """Exit status of the driver that has ended."""
        assert self._child is not None
        return self._child.wait()

    def count_of(self, kind: str) -> int:
        """How often the driver said something of this kind."""
        with self._said:
            return self._heard.get(kind, 0)

    def check(self) -> None:
        """Raise if the driver is in trouble."""
        if self.failure is None and self.count_of("ended") and not self.count_of("stopped"):
            self.failure = f"its driver process ended with status {self.status}; what it wrote is in {self._log_path}"
        if self.failure is not None:
            raise SparkFailed(self.failure)

    def order(self, word: str, answer: str, timeout_s: float) -> None:
        """Send `drain` or `stop` and wait for the answer."""
        assert self._child is not None
        assert self._child.stdin is not None
        before = self.count_of(answer)
        try:
            self._child.stdin.write(word + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
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

    def stop(self) -> None:
        """End the driver, by word if it listens, by signal if not."""
        if self._child is None:
            return
        if self._child.poll() is None:
            try:
                self.order("stop", "stopped", STOP_TIMEOUT_S)
                self._child.wait(STOP_TIMEOUT_S)
            except (SparkFailed, subprocess.TimeoutExpired):
                self._child.kill()
        self._child.wait()
