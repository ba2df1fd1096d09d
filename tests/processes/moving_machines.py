"""`python -m tests.processes.moving_machines`: a cluster moves to new machines under load, without a stop.

Three controllers, a group of three brokers and two proxies run, with the load of `rolling_restart`. Three controllers
take the places of the first three, one after the other; three brokers with empty directories join the group, the master
is handed to one of them, and the first three are stopped and removed. In the end no first controller or broker runs.
The clients and the new parts know the addresses of all six controllers, as the manual asks.

Invariant: what was acknowledged is in the log of the new brokers, in the order of its source. Thread rule: each source
of load is a thread; the move happens in the caller's.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.processes.broker_group import Broker, BrokerGroup, Controller, until
from tests.processes.rig import ROOT, Client, Process, Server, expect_all, no_traceback
from tests.processes.rolling_restart import GROUP, STEADY_S, Devices, Orders, Source, create_topic, is_ready, stored
from tests.support.ports import free_port

MEMBERS = 3


class Move:
    """The machines of before and those of after."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.group = BrokerGroup(directory, controllers=MEMBERS, brokers=MEMBERS, in_sync_min=2)
        self.new_ports = [(free_port(), free_port()) for _ in range(MEMBERS)]
        self.addresses = ",".join([self.group.addresses, *(f"127.0.0.1:{port}" for port, _raft in self.new_ports)])
        self.second_proxy = Process(directory / "proxy-2", ["proxy", "--controllers", self.addresses], "mqtt")
        self.group.proxy.arguments[2] = self.addresses
        self.gone: list[Server] = []

    def start(self) -> None:
        """The first machines, and a topic."""
        self.group.start()
        self.second_proxy.start()
        create_topic(self.group.settle())

    def end(self) -> None:
        """Whatever runs."""
        for each in (*self.gone, self.second_proxy):
            each.kill_if_running()
        self.group.end()

    def run(self, *words: str) -> str:
        """`lightmq cluster`; its standard output."""
        command = [*Server.python, "cluster", *words, "--server", self.addresses]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def replace_controllers(self) -> None:
        """A new one takes the place of each."""
        for at, (port, raft_port) in enumerate(self.new_ports):
            listed = list(map(json.loads, self.run("controllers", "list", "--json").splitlines()))
            number = MEMBERS + at + 1
            text = f"n{number}@127.0.0.1:{port}@{raft_port}"
            peers = ",".join([*(f"{each['nodeId']}@{each['address']}@{each['raftPort']}" for each in listed), text])
            new, old = Controller(self.directory, number, port, peers), self.group.controllers.pop(0)
            new.start()
            self.group.controllers.append(new)
            self.run("controllers", "replace", f"n{at + 1}", text)
            until(partial(is_ready, new), f"{new.log} is not ready")
            self._leave(old)

    def replace_brokers(self) -> None:
        """New ones join; the master moves; the first ones leave, one after the other."""
        first, self.group.addresses = self.group.brokers[:], self.addresses
        for number in range(MEMBERS + 1, 2 * MEMBERS + 1):
            new = self.group.join(number, in_sync_min=2)
            new.start()
            self.group.settle()
        for number, old in enumerate(first, 1):
            if old is self.group.master():
                self.run("transfer", GROUP, str(MEMBERS + 1))
                self.group.settle()
            self.group.brokers.remove(old)
            self._leave(old)
            self.group.settle()
            self.run("remove", GROUP, str(number))

    def _leave(self, old: Controller | Broker) -> None:
        self.gone.append(old)
        assert old.end(signal.SIGTERM) == 0, old.log


def measure(directory: Path, *, rate: float) -> dict[str, Any]:
    """Move everything; the figures. Raises AssertionError for what was lost or out of order."""
    move = Move(directory)
    try:
        move.start()
        reader = Client(move.second_proxy, "reader", clean=False)
        reader.subscribe(("line/#", 1))
        devices = Devices([move.group.proxy, move.second_proxy], rate / 2)
        orders = Orders(move.addresses, rate / 2)
        sources: Sequence[Source] = (orders, devices)
        for each in sources:
            each.start()
        began = time.monotonic()
        time.sleep(STEADY_S)
        move.replace_controllers()
        changed = time.monotonic()
        move.replace_brokers()
        time.sleep(STEADY_S)
        ended = time.monotonic()
        for each in sources:
            each.end()
        orders.producer.close()
        devices.close()
        expect_all(reader, devices.counts)
        reader.close()
        found = stored(move.group)
        assert list(dict.fromkeys(found)) == list(range(orders.sent)), "the producer's messages are not all in order"
        no_traceback(move.second_proxy, *move.group.all, *move.gone)
        return {
            "messages": {"producer": orders.sent, "mqtt": devices.sent},
            "failed": {"producer": len(orders.failures), "mqtt": len(devices.failures)},
            "failures": sorted({*orders.failures, *devices.failures})[:5],
            "repeated_by_producer": len(found) - orders.sent,
            "controllers_s": round(changed - began, 1),
            "brokers_s": round(ended - changed, 1),
            "longest_pause_s": {
                "controllers": [round(each.pause_s(began, changed), 3) for each in sources],
                "brokers": [round(each.pause_s(changed, ended), 3) for each in sources],
            },
        }
    finally:
        move.end()


def main() -> None:
    """Measure, print the figures as JSON, and fail when a send failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages per second, half of them MQTT")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moving-") as directory:
        found = measure(Path(directory), rate=options.rate)
    print(json.dumps(found))
    if sum(found["failed"].values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
