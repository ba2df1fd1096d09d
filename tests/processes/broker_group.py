"""Controllers, brokers of one group and a proxy as processes, for tests of failover."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.processes.rig import Process, Server
from tests.support.ports import free_port

DEADLINE_S = 90.0
POLL_S = 0.05


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for an effect of other processes."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


class Controller(Process):
    """One controller, on the same ports at every start."""

    def __init__(self, directory: Path, number: int, port: int, peers: str, more: Sequence[str] = ()) -> None:
        arguments = ["controller", "--data", str(directory / f"controller-{number}-data")]
        if peers:
            arguments += ["--set", f"controller.peers={peers}", "--set", f"controller.node_id=n{number}"]
        arguments += more
        super().__init__(directory / f"controller-{number}", arguments, "remoting")
        self.port = port


class Broker(Process):
    """One member of the group."""

    admin_key = ""
    """Line of a key file: the credentials for its pages, where an access list requires them."""

    def page(self, name: str) -> bytes:
        """A page of its administration port. Raises OSError."""
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports['admin']}{name}", headers=headers)
        with urllib.request.urlopen(asked, timeout=5) as answer:
            content: bytes = answer.read()
        return content

    def status(self) -> dict[str, Any]:
        """Its status page; empty when it does not answer."""
        try:
            found: dict[str, Any] = json.loads(self.page("/status")).get("member", {})
        except (OSError, ValueError, KeyError):
            return {}
        return found

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None


class BrokerGroup:
    """A whole cluster."""

    def __init__(
        self,
        directory: Path,
        *,
        controllers: int = 1,
        brokers: int = 3,
        in_sync_min: int = 2,
        mode: str = "controller",
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`arguments`: additional ones by kind of process: controller, broker, proxy.

        `mode`: who chooses the master; with "dledger" the controllers are name servers alone.
        """
        self.directory = directory
        self._arguments = dict(arguments or {})
        ports = [(free_port(), free_port()) for _ in range(controllers)]
        peers = ",".join(f"n{at}@127.0.0.1:{port}@{raft}" for at, (port, raft) in enumerate(ports, 1))
        self.controllers = [
            Controller(directory, at, port, peers if controllers > 1 else "", self._arguments.get("controller", ()))
            for at, (port, _raft) in enumerate(ports, 1)
        ]
        self.addresses = ",".join(f"127.0.0.1:{port}" for port, _raft in ports)
        self._electing = [free_port() for _ in range(brokers)] if mode == "dledger" else []
        """Ports of the brokers, in a group that elects its own master."""
        self.brokers = [self._broker(number, in_sync_min) for number in range(1, brokers + 1)]
        arguments_of_proxy = ["proxy", "--controllers", self.addresses, *self._arguments.get("proxy", ())]
        self.proxy = Process(directory / "proxy", arguments_of_proxy, "mqtt")

    def _broker(self, number: int, in_sync_min: int) -> Broker:
        arguments = ["broker", "--data", str(self.directory / f"broker-{number}-data")]
        arguments += ["--controllers", self.addresses]
        for key in ("enabled=true", "port=0", f"in_sync_min={in_sync_min}"):
            arguments += ["--set", f"broker.replication.{key}"]
        if self._electing:
            members = ",".join(f"b{at}@127.0.0.1:{port}" for at, port in enumerate(self._electing, 1))
            arguments += ["--set", "broker.replication.mode=dledger", "--set", f"broker.replication.members={members}"]
        arguments += self._arguments.get("broker", ())
        broker = Broker(self.directory / f"broker-{number}", arguments, "remoting")
        broker.port = self._electing[number - 1] if self._electing else 0
        return broker

    def join(self, number: int, *, in_sync_min: int) -> Broker:
        """One more broker, with an empty directory; it is not started."""
        self.brokers.append(self._broker(number, in_sync_min))
        return self.brokers[-1]

    @property
    def all(self) -> list[Server]:
        """Every process."""
        return [self.proxy, *self.brokers, *self.controllers]

    def start(self) -> None:
        """Start everything and wait until every broker is in sync."""
        for part in (*self.controllers, *self.brokers, self.proxy):
            part.start()
        self.settle()

    def end(self) -> None:
        """At the end of a test, whatever its outcome."""
        for part in self.all:
            part.kill_if_running()

    def master(self) -> Broker | None:
        """The broker that reports to be master; the one with the newest epoch if a former master does not know yet."""
        found = [(each.status(), each) for each in self.brokers if each.running]
        masters = [(status["epoch"], at) for at, (status, _each) in enumerate(found) if status.get("role") == "master"]
        return found[max(masters)[1]][1] if masters else None

    def settle(self) -> Broker:
        """Wait until all running brokers are in sync under one master; returns the master."""
        running = sum(each.running for each in self.brokers)

        def settled() -> bool:
            master = self.master()
            return master is not None and len(master.status().get("in_sync", ())) >= running

        until(settled, f"not in sync: {[each.status() for each in self.brokers]}")
        master = self.master()
        assert master is not None
        return master

    def logs(self) -> list[bytes]:
        """The content of each broker's log, byte for byte; a failed assertion shows more than their ends."""
        return [
            b"".join(
                path.read_bytes()
                for path in sorted((self.directory / f"broker-{number}-data" / "log").iterdir())
                if path.name.isdigit()
            )
            for number in range(1, len(self.brokers) + 1)
        ]

    def wait_equal(self) -> None:
        """Wait until every broker has the same log, while nothing is written."""

        def ends() -> set[tuple[int, ...]]:
            states = [each.status() for each in self.brokers if each.running]
            return {(state.get("end", -1), state.get("flushed", -2)) for state in states}

        until(lambda: len(ends()) == 1, f"the logs do not end alike: {ends()}")
