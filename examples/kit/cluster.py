"""A cluster as the servers of a run: three controllers, three brokers of one group, and a proxy.

A message is acknowledged when two of the three brokers have it on disk, so any one of them may die. Every server is a
process of its own on loopback, with ports that stay its own while it is down, and a log file in the run's folder.
Invariant: what a controller cannot be asked is told as nobody's role. Thread rule: `Roles.of` from any thread, the rest
from the main one.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np

from lightmq import LightMQError
from lightmq.cli.admin.cluster import replicas
from lightmq.cli.connections import ServerTarget, leading_controller
from lightmq.demo.stack import READY_TIMEOUT_S, Ports, StackFailed, forward_lines
from runtime.clock import SystemClock

GROUP = "broker-a"
CONTROLLERS, BROKERS = ("n1", "n2", "n3"), ("broker 1", "broker 2", "broker 3")
POLL_S = 0.2
PORTS = range(15_000, 32_000, 4)
"""Below what the system gives to outgoing connections; a broker also opens the port two below its own."""


class PortsHeld:
    """Free ports that stay ours, also while the server behind one is down: bound here without listening."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = iter(np.random.default_rng(os.getpid()).permutation(PORTS).tolist())
        self._held: list[socket.socket] = []

    def take(self) -> int:
        """Return one more."""
        for number in self._numbers:
            held = socket.socket()
            try:
                held.bind(("127.0.0.1", number))
            except OSError:
                held.close()
                continue
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.append(held)
            return number
        raise StackFailed("no port is free")


class Cluster:
    """Controllers, the brokers of one group, and a proxy: a process each, on loopback."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = PortsHeld()
        self._ports = {name: (ports.take(), ports.take()) for name in (*CONTROLLERS, *BROKERS)}
        """Remoting port, and the one for consensus or replication."""
        self._children: dict[str, subprocess.Popen[str]] = {}
        self._secret = folder.parent / "raft.secret"

    @property
    def controllers(self) -> list[str]:
        """Addresses of the controllers."""
        return [f"127.0.0.1:{self._ports[name][0]}" for name in CONTROLLERS]

    def name_of(self, address: str) -> str:
        """The broker that has a remoting address."""
        return next(name for name in BROKERS if address.endswith(f":{self._ports[name][0]}"))

    def start(self, *, processes: bool, ports: Ports | None = None) -> Ports:
        """Start all of them and return when three brokers are in sync."""
        self._secret.write_text(secrets.token_hex(24))
        self._secret.chmod(0o600)
        waiting = [self._launch(name) for name in (*CONTROLLERS, *BROKERS)]
        admin = [self._ready(name, lines)["admin"] for name, lines in waiting]
        proxy = self._ready(*self._launch("proxy"))
        self._await_group()
        first, *others = (self._ports[name][0] for name in CONTROLLERS)
        return Ports(proxy["mqtt"], first, tuple(admin), tuple(others))

    def _launch(self, name: str) -> tuple[str, Queue[str]]:
        role = "controller" if name in CONTROLLERS else "broker" if name in BROKERS else "proxy"
        settings = self._settings(name, role)
        words = [word for key, value in settings.items() for word in ("--set", f"{role}.{key}={value}")]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder.parent / f"{name.replace(' ', '-')}.log").open("a") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "lightmq", role, *words, "--json"],
                stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip
        self._children[name] = child
        lines: Queue[str] = Queue()
        threading.Thread(target=forward_lines, args=(child, lines), daemon=True).start()
        return name, lines

    def _settings(self, name: str, role: str) -> dict[str, Any]:
        common = {"host": "127.0.0.1", "admin_port": 0}
        if role == "proxy":
            return common | {"port": 0, "controllers": ",".join(self.controllers), "broker_name": GROUP}
        remoting, second = self._ports[name]
        common |= {"port": remoting, "data_directory": self._folder / name.replace(" ", "-")}
        if role == "controller":
            peers = ",".join(f"{one}@127.0.0.1:{self._ports[one][0]}@{self._ports[one][1]}" for one in CONTROLLERS)
            raft = {"node_id": name, "peers": peers, "raft_host": "127.0.0.1", "raft_secret_file": self._secret}
            return common | raft
        return common | {
            "advertised_host": "127.0.0.1", "controllers": ",".join(self.controllers), "broker_name": GROUP,
            "replication.enabled": "true", "replication.port": second,
            "replication.advertised_address": f"127.0.0.1:{second}",
            "replication.acknowledge": "all", "replication.in_sync_min": 2,
        }  # fmt: skip

    def _ready(self, name: str, lines: Queue[str]) -> dict[str, int]:
        try:
            line = lines.get(timeout=2 * READY_TIMEOUT_S)
        except Empty:
            line = ""
        if not line.strip():
            log = self._folder.parent / f"{name.replace(' ', '-')}.log"
            raise StackFailed(f"{name} did not become ready:\n{log.read_text()[-2000:]}")
        ready: dict[str, int] = json.loads(line)
        return ready

    def _await_group(self) -> None:
        clock, pause = SystemClock(), threading.Event()
        deadline_ms = clock.now_ms() + 2000 * READY_TIMEOUT_S
        while len(Roles.of(self).in_sync) < len(BROKERS):
            if clock.now_ms() > deadline_ms:
                raise StackFailed("the three brokers did not come in sync")
            pause.wait(POLL_S)

    def start_broker(self, name: str) -> None:
        """Start one that was killed again, on its data; returns at once."""
        self._launch(name)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process."""
        child = self._children[name]
        child.send_signal(number)
        if number == signal.SIGKILL:
            child.wait()

    def kill(self) -> None:
        """End all by kill -9."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._children.clear()

    def stop(self) -> None:
        """End the proxy and the brokers, then the controllers."""
        for name in reversed(self._children):
            child = self._children[name]
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGCONT)
                child.terminate()
        for child in self._children.values():
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()


@dataclass(frozen=True, slots=True)
class Roles:
    """What the controllers say of the group at one moment."""

    at_ms: int = 0
    master: str = ""
    epoch: int = 0
    in_sync: frozenset[str] = frozenset()

    @classmethod
    def of(cls, cluster: Cluster) -> Roles:
        """Ask the leading controller; nobody is anything when none answers."""
        now_ms = SystemClock().now_ms()
        try:
            with leading_controller(ServerTarget(server=",".join(cluster.controllers), timeout=2.0)) as found:
                state = found.groups(GROUP).get(GROUP)
        except (LightMQError, OSError):
            return cls(now_ms)
        if state is None:
            return cls(now_ms)
        alive = [one for one in replicas(state) if one.alive]
        master = [one.broker_address for one in alive if one.broker_id == state.master_broker_id]
        in_sync = frozenset(cluster.name_of(one.broker_address) for one in alive if one in state.in_sync_replicas)
        return cls(now_ms, cluster.name_of(master[0]) if master else "", state.master_epoch or 0, in_sync)
