"""A broker alone, or a group of brokers with a controller, as processes, started and queried as users do it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

DEADLINE_S = 120.0
POLL_S = 0.02


class Started:
    """One process of `lightmq`, on the same ports at every start."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._command = [sys.executable, "-m", "lightmq", *arguments, "--data", str(folder / name), "--json"]
        self._process: subprocess.Popen[str] | None = None
        self.port = self.admin = 0

    def start(self) -> None:
        """Start and wait until it reports its ports."""
        ports = ["--remoting-port", str(self.port), "--admin-port", str(self.admin)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, *ports], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} did not start: {self._log.read_text()[-2_000:]}")
        ports = json.loads(line)
        self.port, self.admin = ports["remoting"], ports["admin"]

    def end(self) -> None:
        """Stop it cleanly; idempotent."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    @property
    def id(self) -> int:
        """Id of the process."""
        assert self._process is not None
        return self._process.pid

    def member(self) -> dict[str, Any]:
        """A broker's status as a member of its group."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer).get("member", {})
        return found


class Group:
    """Brokers with one controller; one broker is alone, without a controller and without replication."""

    def __init__(self, folder: Path, brokers: int, in_sync_min: int = 2) -> None:
        self._controller = Started(folder, "controller", "controller") if brokers > 1 else None
        self._folder, self._in_sync_min, self._count = folder, in_sync_min, brokers
        self.brokers: list[Started] = []

    def start(self) -> None:
        """Start all and wait until all are in sync; the master is the first of `brokers` then."""
        controllers, options = "", ["--set", "broker.store.flush=sync"]
        if self._controller is not None:
            self._controller.start()
            controllers = f"127.0.0.1:{self._controller.port}"
            for value in ("enabled=true", "port=0", f"in_sync_min={self._in_sync_min}"):
                options += ["--set", f"broker.replication.{value}"]
        for number in range(1, 1 + self._count):
            name = f"broker-{number}"
            self.brokers.append(Started(self._folder, name, "broker", "--controllers", controllers, *options))
            self.brokers[-1].start()
        if self._controller is not None:
            self.until_in_sync(self._count)
            self.brokers.sort(key=lambda each: each.member().get("role") != "master")

    def until_in_sync(self, count: int) -> None:
        """Wait until the master reports so many members in sync. Raises TimeoutError."""
        deadline = time.monotonic() + DEADLINE_S
        while max(len(each.member().get("in_sync", ())) for each in self.brokers[:count]) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not in sync: {[each.member() for each in self.brokers]}")
            time.sleep(POLL_S)

    def end(self) -> None:
        """End all."""
        for each in [*self.brokers, *([self._controller] if self._controller else [])]:
            each.end()


def folder_for_data() -> str | None:
    """Where the data goes: `TMPDIR`, else here, because /tmp may be memory."""
    return os.environ.get("TMPDIR") or "."
