"""Applies a plan to a cluster, and records each step before it is taken.

Invariant: after `undo` every node runs, none is paused, the network is whole and no disk is full.
Thread rule: one thread.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos import disks, preloaded
from tests.chaos.cluster import GROUP, Cluster, Node
from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.group import broker_id, others_in_sync
from tests.chaos.network import NamespaceNetwork, ProxiedNetwork
from tests.chaos.partitions import PARTITIONS
from tests.chaos.plan import Fault
from tests.chaos.record import Record
from tests.support.tree import ROOT

BOTH = frozenset({IN, OUT})
FILLER = "filler"
WIPE_OTHERS_MIN = 2
"""Living brokers that must have everything before the disk of another one is lost."""
LOOP_S = 0.3
REPLACE_S = 60
"""Longest wait until controllers have one more or one fewer that votes."""
READY_S = 30.0
"""Longest wait in a rolling restart until a server is ready again."""
BEHIND_S = 300.0
"""Longest wait until the log was cleaned past a stopped replica."""
DAMAGES: dict[str, Callable[[Path, random.Random], dict[str, Any]]] = {
    "lost_tail": disks.lose_tail,
    "lost_tails": disks.lose_tail,
    "lost_epochs": disks.lose_epochs,
    "bit_flip": disks.flip_bit,
    "torn_journal": disks.tear_journal,
}


class Injector:
    """Injects the faults."""

    def __init__(self, cluster: Cluster, record: Record, sleep: Callable[[float], object] = time.sleep) -> None:
        self._cluster = cluster
        self._record = record
        self._sleep = sleep
        self.number = 0
        self._outside: dict[str, tuple[str, ...]] = {}
        """Controller with an empty disk -> the words by which an operator has it taken in again."""

    def inject(self, fault: Fault) -> None:
        """One fault, with a second one if it has one, from beginning to end."""
        faults = [fault, fault.together] if fault.together is not None else [fault]
        begun = self._record.now()
        for each in faults:
            self.number += 1
            self._record.note(
                "fault", number=self.number, kind=each.kind, targets=each.targets, lasts_s=each.lasts_s, **each.details
            )
            self._begin(each)
        self._sleep(max(0.0, max(each.lasts_s for each in faults) - (self._record.now() - begun)))
        self.undo(faults)
        self._record.note("healed", number=self.number, kinds=[each.kind for each in faults])

    def undo(self, faults: list[Fault] | None = None) -> None:
        """Undo everything: what the faults touched, or the whole cluster."""
        names = {name for fault in faults for name in fault.targets} if faults is not None else set(self._cluster.nodes)
        for name in self._cluster.nodes:
            if name not in names:
                continue
            node = self._cluster.nodes[name]
            with contextlib.suppress(FileNotFoundError):
                (node.data / FILLER).unlink()
            self._cluster.network.heal(name)
            if self._cluster.is_preloaded:
                preloaded.set_conditions(node.conditions)
            if node.is_paused:
                node.go_on()
            if not node.is_running():
                self._start(node)
        for name in names & set(self._outside):
            if self._operate(*self._outside[name], "--wait", str(REPLACE_S)):
                del self._outside[name]

    def _operate(self, *words: str) -> bool:
        """Type a command of `lightmq cluster`; whether it succeeded."""
        command = [sys.executable, "-m", "lightmq", "cluster", *words, "--server", ",".join(self._cluster.controllers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * REPLACE_S)
        self._record.note("operated", words=words, status=done.returncode, said=done.stdout + done.stderr)
        return done.returncode == 0

    def _start(self, node: Node) -> None:
        if node.process is not None and node.process.returncode not in (-9, 0):
            self._record.note("ended", node=node.name, status=node.process.returncode)
        node.start()

    def _begin(self, fault: Fault) -> None:
        nodes = [self._cluster.nodes[name] for name in fault.targets]
        match fault.kind:
            case "kill" | "kill_most" | "kill_role" | "kill_all":
                for node in nodes:
                    node.send_kill()
                for node in nodes:
                    node.kill()
            case "restart_loop":
                self._restart(fault, nodes)
            case "flap" | "rolling":
                self._flap(fault) if fault.kind == "flap" else self._roll(nodes)
            case kind if kind in DAMAGES:
                self._damage(fault, nodes)
            case "ring" | "bridge":
                for one, other in PARTITIONS[fault.kind](fault.targets):
                    self._cluster.network.cut(one, BOTH, [other])
            case _:
                for node in nodes:
                    self._begin_one(fault, node)

    def _begin_one(self, fault: Fault, node: Node) -> None:
        match fault.kind:
            case "pause" | "pause_most" | "pause_long":
                node.pause()
            case "leave":
                self._record.note("left", node=node.name, status=node.stop())
            case "left_behind":
                self._leave_behind(node)
            case "learner_anew":
                node.kill()
                node.wipe()
            case "wipe" | "wipe_controller":
                self._wipe(node, ("controllers", "replace", node.name))
            case "remove_controller" | "remove_broker":
                self._remove(node)
            case "full_disk":
                fill(node.data)
            case "clock_jump":
                preloaded.set_conditions(node.conditions, clock_s=fault.details["seconds"])
            case "slow_disk":
                preloaded.set_conditions(node.conditions, fsync_s=fault.details["seconds"])
            case _:
                self._break_network(fault, node.name)

    def _restart(self, fault: Fault, nodes: list[Node]) -> None:
        for _ in range(fault.details["times"]):
            for node in nodes:
                node.kill()
                node.start()
            self._sleep(LOOP_S + fault.lasts_s / 4)

    def _roll(self, nodes: list[Node]) -> None:
        """Stop and start one after the other, as an upgrade does: the next one when this one is ready again."""
        for node in nodes:
            self._record.note("left", node=node.name, status=node.stop())
            node.start()
            until = self._record.now() + READY_S
            while not is_ready(self._cluster, node) and self._record.now() < until:
                self._sleep(LOOP_S)

    def _flap(self, fault: Fault) -> None:
        """Stop and start again; all turns together last as long as the fault."""
        turn_s = fault.lasts_s / (2 * fault.details["times"])
        for _ in range(fault.details["times"]):
            for name in fault.targets:
                self._cluster.network.cut(name, BOTH)
            self._sleep(turn_s)
            for name in fault.targets:
                self._cluster.network.heal(name)
            self._sleep(turn_s)

    def _damage(self, fault: Fault, nodes: list[Node]) -> None:
        """kill -9 of all at once, then the damage of a power cut or a bad disk to their files."""
        for node in nodes:
            node.send_kill()
        for node in nodes:
            node.kill()
        chance = random.Random(fault.details["seed"])
        for node in nodes:
            self._record.note("damaged", node=node.name, kind=fault.kind, **DAMAGES[fault.kind](node.data, chance))

    def _is_spare(self, node: Node) -> bool:
        """Whether others have everything that is on this disk; noted if not."""
        if node.role == "controller":
            controllers = self._cluster.of("controller")
            is_spare = not self._outside and all(is_ready(self._cluster, each) for each in controllers)
        else:
            is_spare = others_in_sync(self._cluster, node.name) >= WIPE_OTHERS_MIN
        if not is_spare:
            self._record.note("spared", node=node.name, why="others may lack what it has")
        return is_spare

    def _wipe(self, node: Node, words: tuple[str, ...]) -> None:
        """Wipe a disk, if others have everything that was on it; by these words a controller is taken in again."""
        if self._is_spare(node):
            node.kill()
            self._empty(node, words)

    def _remove(self, node: Node) -> None:
        """Take a server out of the members; it joins again with an empty disk, a broker under a new id."""
        if not self._is_spare(node):
            return
        if node.role == "controller":
            if self._operate("controllers", "remove", node.name, "--wait", str(REPLACE_S)):
                self._record.note("left", node=node.name, status=node.stop())
                self._empty(node, ("controllers", "add", self._cluster.peer(node)))
            return
        number = broker_id(self._cluster, node.name)
        self._record.note("left", node=node.name, status=node.stop())
        if self._operate("remove", GROUP, str(number)):
            self._empty(node)

    def _empty(self, node: Node, words: tuple[str, ...] = ()) -> None:
        node.wipe()
        if node.role == "controller":
            self._outside[node.name] = words
        self._record.note("wiped", node=node.name)

    def _leave_behind(self, node: Node) -> None:
        """Keep a broker away until the log of all others begins after the end of its own."""
        node.kill()
        end = disks.flushed_end(node.data)
        others = [each for each in self._cluster.of("broker") if each is not node]
        until = self._record.now() + BEHIND_S
        while (begin := min(map(log_begin, others))) <= end and self._record.now() < until:
            self._sleep(LOOP_S)
        self._record.note("left_behind", node=node.name, end=end, begin=begin, is_behind=begin > end)

    def _break_network(self, fault: Fault, name: str) -> None:
        network = self._cluster.network
        match fault.kind:
            case "cut":
                network.cut(name, BOTH)
            case "cut_in":
                network.cut(name, frozenset({IN}))
            case "cut_out":
                network.cut(name, frozenset({OUT}))
            case "partial_cut":
                network.cut(name, BOTH, fault.details["others"])
            case "loss":
                assert isinstance(network, NamespaceNetwork)
                network.lose(name, fault.details["share"], fault.details["seed"])
            case "slow_network":
                assert isinstance(network, NamespaceNetwork)
                network.slow(name, fault.details["kilobits"], fault.details["wait_ms"])
            case "delay":
                assert isinstance(network, ProxiedNetwork)
                network.delay(name, fault.details["seconds"])
            case "reset":
                assert isinstance(network, ProxiedNetwork)
                network.reset(name)
            case _:
                raise AssertionError(f"unknown kind of fault: {fault.kind}")


def is_ready(cluster: Cluster, node: Node) -> bool:
    """Whether a server reports to be ready: a controller, that it has caught up."""
    try:
        cluster.page(node, "readyz")
    except OSError:
        return False
    return True


def log_begin(node: Node) -> int:
    """The position of the first byte that a broker's log has."""
    return min((int(each.name) for each in (node.data / "log").iterdir() if each.name.isdigit()), default=0)


def fill(folder: Path) -> None:
    """Fill the file system of the folder."""
    free = os.statvfs(folder)
    with (folder / FILLER).open("wb") as stream, contextlib.suppress(OSError):
        os.posix_fallocate(stream.fileno(), 0, free.f_bavail * free.f_frsize)
