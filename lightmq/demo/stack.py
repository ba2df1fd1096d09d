"""Starts and stops what the demo runs against: `lightmq up`, or controller, broker and proxy as three processes.

Invariant: each child says its ports as one JSON line on standard output and runs in a session of its own, so that a
Ctrl-C of the terminal reaches the demo alone; children are stopped in reverse order.

Reads the few figures that the view shows from the servers' metrics pages.

Invariant: a page that does not answer leaves the last figures as they were; the demo never fails because of its view.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

from prometheus_client.parser import text_string_to_metric_families

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0


class StackFailed(RuntimeError):
    """A part did not start; the text holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the running stack answers on loopback; `nameserver` is what clients of the log are given."""

    mqtt: int
    nameserver: int
    admin: tuple[int, ...]


class Stack:
    """The servers of one demo run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []

    def start(self, *, processes: bool) -> Ports:
        """Start the stack and return its ports once all of it is ready."""
        if not processes:
            ready = self._launch(
                "up", "--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0", "--data", str(self._folder)
            )
            return Ports(ready["mqtt"], ready["remoting"], (ready["admin"],))
        controller = self._launch(
            "controller", "--remoting-port", "0", "--admin-port", "0", "--data", str(self._folder / "controller")
        )
        address = f"127.0.0.1:{controller['remoting']}"
        broker = self._launch(
            "broker",
            "--remoting-port",
            "0",
            "--admin-port",
            "0",
            "--data",
            str(self._folder / "broker"),
            "--controllers",
            address,
        )
        proxy = self._launch("proxy", "--mqtt-port", "0", "--admin-port", "0", "--controllers", address)
        return Ports(proxy["mqtt"], controller["remoting"], (controller["admin"], broker["admin"], proxy["admin"]))

    def _launch(self, part: str, *arguments: str) -> dict[str, int]:
        self._folder.mkdir(parents=True, exist_ok=True)
        log_path = self._folder.parent / f"{part}.log"
        with log_path.open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lightmq", part, "--json", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._children.append(child)
        self.pids.append(child.pid)
        lines: Queue[str] = Queue()
        threading.Thread(target=forward_lines, args=(child, lines), daemon=True).start()
        try:
            line = lines.get(timeout=READY_TIMEOUT_S)
        except Empty:
            line = ""
        if not line.strip():
            raise StackFailed(f"lightmq {part} did not become ready:\n{log_path.read_text()[-2000:]}")
        ports: dict[str, int] = json.loads(line)
        return ports

    def stop(self) -> None:
        """Ask every child to stop, last started first, and make sure it did."""
        for child in reversed(self._children):
            if child.poll() is None:
                os.kill(child.pid, signal.SIGTERM)
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()


def forward_lines(child: subprocess.Popen[str], lines: Queue[str]) -> None:
    """Move a child's output into a queue; an empty line marks its end."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put("")


TIMEOUT_S = 1.0
MESSAGES_IN = "rocketmq_messages_in_total"
MESSAGES_OUT = "rocketmq_messages_out_total"
CONFIRM_LAG = "rocketmq_confirm_lag_bytes"


def fetch(port: int) -> str:
    """Text of one metrics page; empty when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def totals(text: str) -> dict[str, float]:
    """Sum of the samples of each name."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


class BrokerFigures:
    """Messages in, messages out and bytes not yet durable, over all servers of the stack."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._last: tuple[int, int, int] = (0, 0, 0)

    def read(self) -> tuple[int, int, int]:
        """Read the pages once."""
        sums: dict[str, float] = {}
        for port in self._ports:
            for name, value in totals(fetch(port)).items():
                sums[name] = sums.get(name, 0.0) + value
        if sums:
            self._last = (int(sums.get(MESSAGES_IN, 0)), int(sums.get(MESSAGES_OUT, 0)), int(sums.get(CONFIRM_LAG, 0)))
        return self._last
