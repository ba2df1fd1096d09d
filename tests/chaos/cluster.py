"""The processes of a run: controllers, brokers of one group and proxies, each with its folder, ports and fate.

A node is started with fixed ports without waiting for it: under faults a start may take long, and its users wait for
its answers. Thread rule: faults from one thread; `is_running` from any.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import preloaded
from tests.chaos.network import Network
from tests.support.ports import free_port
from tests.support.tree import ROOT

USER, PASSWORD = "chaos", "a-long-password"
GROUP = "broker-a"
SEGMENT_BYTES = 32 * 1024 * 1024
DISK_BYTES = 640 * 1024 * 1024
"""Least size of the file system of a broker that may be filled."""
CONTROLLER_DISK_BYTES = 64 * 1024 * 1024
KEPT_SEGMENT_BYTES = 4 * 1024 * 1024
"""Segments of a run in which the log is cleaned; a whole one goes at a time."""


@dataclass
class Node:
    """One server process."""

    name: str
    role: str
    folder: Path
    prefix: list[str]
    ports: dict[str, int]
    values: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False
    starts: int = 0
    is_learner: bool = False

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self.folder / "data"

    @property
    def conditions(self) -> Path:
        """The offset of its time of day, and the delay of its disk."""
        return self.folder / "conditions"

    @property
    def log(self) -> Path:
        """Its standard error."""
        return self.folder / "log.txt"

    def is_running(self) -> bool:
        """Whether the process lives, paused or not."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process."""
        assert not self.is_running(), self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [word for key, value in self.values.items() for word in ("--set", f"{key}={value}")]
        command = [*self.prefix, sys.executable, "-m", "lightmq", self.role, *words, "--json"]
        with self.log.open("ab") as log, (self.folder / "ports.txt").open("wb") as ports:
            self.process = subprocess.Popen(
                command,
                stdout=ports,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.variables},
            )
        self.starts += 1

    def send(self, number: signal.Signals) -> None:
        """A signal to the process; `ip netns exec` replaces itself with it, so the id is the server's."""
        if self.process is not None and self.is_running():
            self.process.send_signal(number)

    def send_kill(self) -> None:
        """kill -9 without waiting, so that several end at once."""
        self.send(signal.SIGKILL)

    def kill(self) -> None:
        """kill -9 and wait for the end."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
        self.is_paused = False

    def pause(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)
        self.is_paused = False

    def stop(self) -> int | None:
        """SIGTERM; returns the exit status."""
        if self.process is None:
            return None
        self.go_on()
        self.send(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def wipe(self) -> None:
        """Lose everything that was on the disk."""
        assert not self.is_running()
        for entry in self.data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class Cluster:
    """All nodes of a run."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        names: dict[str, str],
        *,
        disk_bytes: int = 0,
        silence_ms: int = 0,
        kept_bytes: int = 0,
        elects: bool = False,
    ) -> None:
        """``names``: node -> role, controllers first; a learner is a broker that is never in sync.

        ``disk_bytes``: each broker has a file system of this size and each controller a small one, 0: none;
        ``silence_ms``: when a broker counts as dead, 0 as shipped; ``kept_bytes``: how much of the log is kept, 0: all;
        ``elects``: the brokers elect their master themselves.
        """
        self.silence_ms = silence_ms
        self.kept_bytes = kept_bytes
        self.elects = elects
        self.network = network
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self.mounted: list[Path] = []
        for name, kind in names.items():
            role = "broker" if kind == "learner" else kind
            purposes = {"controller": ("port", "raft"), "broker": ("port", "ha"), "proxy": ("port",)}[role]
            ports = {purpose: free_port() for purpose in (*purposes, "admin")}
            made = Node(name, role, folder / name, network.prefix_of(name), ports, is_learner=kind == "learner")
            self.nodes[name] = made
            for purpose in purposes:
                network.serve(name, ports[purpose])
        self._write_users()
        library = preloaded.build(folder)
        self.is_preloaded = library is not None
        for node in self.nodes.values():
            node.values = self._values(node)
            node.data.mkdir(parents=True)
            node.variables = preloaded.variables(library, node.conditions) if library is not None else {}
        if disk_bytes:
            self._mount_disks(disk_bytes)

    def of(self, role: str) -> list[Node]:
        """Nodes with a role."""
        return [node for node in self.nodes.values() if node.role == role]

    def address(self, node: Node, purpose: str = "port") -> str:
        """The address that others dial."""
        return f"{self.network.host(node.name)}:{node.ports[purpose]}"

    def peer(self, node: Node) -> str:
        """A controller as in `controller.peers`."""
        return f"{node.name}@{self.address(node)}@{node.ports['raft']}"

    @property
    def controllers(self) -> list[str]:
        """Addresses of the name servers."""
        return [self.address(node) for node in self.of("controller")]

    def start(self) -> None:
        """Start every process."""
        for node in self.nodes.values():
            node.start()

    def status(self, node: Node) -> dict[str, Any]:
        """The /status page. Raises OSError."""
        found: dict[str, Any] = json.loads(self.page(node, "status"))
        return found

    def page(self, node: Node, name: str) -> bytes:
        """A page of the administration port. Raises OSError when there is none, or it answers with an error."""
        url = f"http://{self.network.listen_host(node.name)}:{node.ports['admin']}/{name}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            content: bytes = answer.read()
            return content

    def close(self) -> None:
        """Kill what is running and remove the network and the disks."""
        for node in self.nodes.values():
            node.kill()
        self.network.close()
        for place in self.mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)

    def _values(self, node: Node) -> dict[str, Any]:
        """The configuration of a node, as keys for --set."""
        host = self.network.listen_host(node.name)
        controllers = ",".join(self.controllers)
        prefix = node.role
        common = {f"{prefix}.host": host, f"{prefix}.port": node.ports["port"]}
        common |= {f"{prefix}.admin_host": host, f"{prefix}.admin_port": node.ports["admin"]}
        if node.role == "proxy":
            return {**common, "proxy.controllers": controllers, "proxy.password_file": self.folder / "users"}
        common |= {f"{prefix}.data_directory": node.data, f"{prefix}.open_to_all": "true"}
        if node.role == "controller":
            silence = {"controller.replica_timeout_ms": self.silence_ms} if self.silence_ms else {}
            return {**common, **silence, **self._as_peer(node)}
        common |= {"broker.advertised_host": self.network.host(node.name), "broker.controllers": controllers}
        segment_bytes = KEPT_SEGMENT_BYTES if self.kept_bytes else SEGMENT_BYTES
        common |= {"broker.store.segment_size_bytes": segment_bytes, "broker.store.retention_ms": 0}
        common |= {"broker.store.retention_size_bytes": self.kept_bytes}
        common |= {"broker.broker_name": GROUP, "broker.store.free_space_bytes_min": 64 * 1024 * 1024}
        return {**common, **self._as_replica(node)}

    def _as_peer(self, node: Node) -> dict[str, Any]:
        """One of several controllers."""
        nodes = self.of("controller")
        if len(nodes) == 1:
            return {}
        peers = ",".join(map(self.peer, nodes))
        host = self.network.listen_host(node.name)
        own = {"controller.node_id": node.name, "controller.peers": peers, "controller.raft_host": host}
        return {**own, "controller.raft_secret_file": self.folder / "raft.secret"}

    def _as_replica(self, node: Node) -> dict[str, Any]:
        """One of several brokers of the group: acknowledged data is on two disks."""
        brokers = sum(not each.is_learner for each in self.of("broker"))
        if brokers == 1:
            return {}
        return {
            "broker.replication.enabled": "true",
            "broker.replication.port": node.ports["ha"],
            "broker.replication.advertised_address": self.address(node, "ha"),
            "broker.replication.acknowledge": "all",
            "broker.replication.learner": str(node.is_learner).lower(),
            "broker.replication.in_sync_min": 2 if brokers > 2 else 1,
            **(self._as_elector() if self.elects else {}),
            **({"broker.replication.heartbeat_timeout_ms": self.silence_ms} if self.silence_ms else {}),
        }

    def _as_elector(self) -> dict[str, Any]:
        """A member that votes; it counts copies on disks."""
        members = ",".join(f"{each.name}@{self.address(each)}" for each in self.of("broker"))
        return {
            "broker.replication.mode": "dledger", "broker.replication.members": members, "broker.store.flush": "sync"
        }  # fmt: skip

    def _write_users(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "lightmq", "passwd", str(self.folder / "users"), USER, "--stdin"]
        subprocess.run(command, input=PASSWORD.encode(), cwd=ROOT, check=True, capture_output=True)
        secret = self.folder / "raft.secret"
        secret.write_text("what the controllers of this run know")
        secret.chmod(0o600)

    def _mount_disks(self, broker_bytes: int) -> None:
        for node in (*self.of("broker"), *self.of("controller")):
            size_bytes = broker_bytes if node.role == "broker" else CONTROLLER_DISK_BYTES
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(node.data)]
            subprocess.run(command, check=True)
            self.mounted.append(node.data)
