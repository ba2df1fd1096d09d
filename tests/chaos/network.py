"""The network of a run's processes and its faults: fault proxies, or network namespaces.

`ProxiedNetwork` works for every user: each server listens on 127.0.0.1 and the others dial a separate address in
127.0.0.0/8, where the fault proxy cuts, delays and resets. `NamespaceNetwork` needs root and the tool `ip`: every node
has a namespace on one bridge; a direction between two nodes is cut by giving the sender a false link address of the
receiver, so that packets are lost without an error on either side. Packet loss does that for short random periods. A
slow network is a token bucket at both ends of a node's link, in which packets wait.
Thread rule: faults from one thread.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import threading
from itertools import permutations

from tests.chaos.fault_proxy import IN, OUT, FaultProxy

NOBODY = "02:00:00:00:00:fe"
SLOT_S = 0.02
"""Length of one turn of loss."""
BURST = "32kb"
"""What a slow network lets through at once; a packet must fit."""
_numbers = itertools.count(1)
HERE = "here"
"""The clients of the run, as a node of the network."""


class ProxiedNetwork:
    """Loopback with a fault proxy in front of every server."""

    name = "fault proxies"
    kinds = frozenset({"cut", "cut_in", "cut_out", "flap", "delay", "reset"})
    prefix_of = staticmethod(lambda _node: [])

    def __init__(self, nodes: list[str]) -> None:
        self.proxy = FaultProxy()
        self._numbers = {node: number for number, node in enumerate(nodes, 1)}
        self._second = os.getpid() % 250 + 1
        self._faces: dict[str, list[str]] = {node: [] for node in nodes}

    def listen_host(self, node: str) -> str:
        """The address that a server of the node listens on."""
        return "127.0.0.1"

    def host(self, node: str) -> str:
        """The address that others dial."""
        return f"127.{self._second}.0.{self._numbers[node]}"

    def serve(self, node: str, port: int) -> None:
        """A server of this node listens on this port."""
        name = f"{node}:{port}"
        self._faces[node].append(name)
        self.proxy.add(name, (self.host(node), port), ("127.0.0.1", port))

    def cut(self, node: str, directions: frozenset[str], others: list[str] | None = None) -> None:
        """Nothing passes between this node and the others."""
        assert others is None, "a fault proxy does not know which node dials"
        for face in self._faces[node]:
            self.proxy.set(face, cut=directions)

    def delay(self, node: str, seconds: float) -> None:
        """Delay everything to and from this node."""
        for face in self._faces[node]:
            self.proxy.set(face, delay_s=seconds)

    def reset(self, node: str) -> None:
        """Break every connection to this node."""
        for face in self._faces[node]:
            self.proxy.reset(face)

    def lose(self, node: str, share: float, seed: int) -> None:
        """Not possible here."""
        raise NotImplementedError

    def heal(self, node: str) -> None:
        """Undo everything."""
        for face in self._faces[node]:
            self.proxy.set(face)

    def close(self) -> None:
        """End."""
        self.proxy.close()


class NamespaceNetwork:
    """A namespace per node on a bridge."""

    name = "network namespaces"
    kinds = frozenset({"cut", "cut_in", "cut_out", "partial_cut", "ring", "bridge", "flap", "loss", "slow_network"})

    def __init__(self, nodes: list[str]) -> None:
        # A number of its own: the interfaces of a deleted namespace disappear some time later.
        self._tag = f"lq{os.getpid() % 100_000}{next(_numbers)}x"
        self._net = f"10.{64 + os.getpid() % 60}.{os.getpid() // 60 % 250}"
        self._nodes = nodes
        self._hosts = {node: f"{self._net}.{number}" for number, node in enumerate(nodes, 1)}
        self._hosts[HERE] = f"{self._net}.254"
        self._links: dict[str, str] = {}
        self._lossy: dict[str, threading.Event] = {}
        self._slow: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible() -> bool:
        """Whether this user may create namespaces."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return False
        name = f"lq{os.getpid() % 100_000}probe"
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
        if made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        return made

    def prefix_of(self, node: str) -> list[str]:
        """The command prefix that runs a command inside the node's namespace."""
        return ["ip", "netns", "exec", self._space(node)]

    def listen_host(self, node: str) -> str:
        """What a server of the node listens on."""
        return self.host(node)

    def host(self, node: str) -> str:
        """The node's address."""
        return self._hosts[node]

    def serve(self, node: str, port: int) -> None:
        """Nothing to open: the address is the node's own."""

    def cut(self, node: str, directions: frozenset[str], others: list[str] | None = None) -> None:
        """Drop what goes to (`in`) or comes from (`out`) this node, for all others or for some."""
        with self._lock:
            for other in others if others is not None else [each for each in self._hosts if each != node]:
                if OUT in directions:
                    self._neighbour(node, other, NOBODY)
                if IN in directions:
                    self._neighbour(other, node, NOBODY)

    def lose(self, node: str, share: float, seed: int) -> None:
        """Lose this share of what goes to and from the node, in turns of 20 ms, until healed."""
        ended = self._lossy[node] = threading.Event()
        chance = random.Random(seed)

        def turns() -> None:
            is_cut = False
            while not ended.wait(SLOT_S):
                wants = chance.random() < share
                if wants and not is_cut:
                    self.cut(node, frozenset({IN, OUT}))
                elif is_cut and not wants:
                    self._mend(node)
                is_cut = wants

        thread = threading.Thread(target=turns, name=f"loss-{node}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def slow(self, node: str, kilobits: int, wait_ms: int) -> None:
        """Limit the node to this many kilobits a second each way; a packet waits at most this long, then it is lost."""
        self._slow.add(node)
        for device in self._cable(node):
            bucket = ["rate", f"{kilobits}kbit", "burst", BURST, "latency", f"{wait_ms}ms"]
            _run("tc", *device[0], "qdisc", "replace", "dev", device[1], "root", "tbf", *bucket)

    def heal(self, node: str) -> None:
        """Undo everything."""
        if node in self._slow:
            self._slow.remove(node)
            for device in self._cable(node):
                _run("tc", *device[0], "qdisc", "del", "dev", device[1], "root")
        ended = self._lossy.pop(node, None)
        if ended is not None:
            ended.set()
            for thread in self._threads:
                thread.join()
            self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._mend(node)

    def close(self) -> None:
        """Remove everything; processes inside must have ended."""
        for node in list(self._lossy):
            self.heal(node)
        for words in (*(("netns", "del", self._space(node)) for node in self._nodes), ("link", "del", f"{self._tag}b")):
            subprocess.run(["ip", *words], capture_output=True, check=False)  # it may never have been created

    def _cable(self, node: str) -> list[tuple[list[str], str]]:
        """Both ends of a node's cable: their namespaces and names."""
        outer = f"{self._tag}v{self._nodes.index(node) + 1}"
        return [(["-n", self._space(node)], self._inner(node)), ([], outer)]

    def _mend(self, node: str) -> None:
        with self._lock:
            for other in self._hosts:
                if other != node:
                    self._neighbour(node, other, self._links[other])
                    self._neighbour(other, node, self._links[node])

    def _neighbour(self, sender: str, receiver: str, link: str) -> None:
        device = f"{self._tag}b" if sender == HERE else self._inner(sender)
        inside = [] if sender == HERE else ["-n", self._space(sender)]
        place = ["neigh", "replace", self._hosts[receiver], "lladdr", link, "dev", device, "nud", "permanent"]
        _ip(*inside, *place)

    def _inner(self, node: str) -> str:
        """A name that the machine itself does not use: interfaces are created here and then moved."""
        return f"{self._tag}e{self._nodes.index(node) + 1}"

    def _space(self, node: str) -> str:
        return f"{self._tag}{node}"

    def _build(self) -> None:
        bridge = f"{self._tag}b"
        self._links[HERE] = f"02:00:{self._nodes_tag()}:00:fd"
        _ip("link", "add", bridge, "address", self._links[HERE], "type", "bridge")
        _ip("addr", "add", f"{self._hosts[HERE]}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, node in enumerate(self._nodes, 1):
            space, outer, inner = self._space(node), f"{self._tag}v{number}", self._inner(node)
            link = self._links[node] = f"02:00:{self._nodes_tag()}:00:{number:02x}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "address", link, "netns", space)
            _ip("link", "set", outer, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{self._hosts[node]}/24", "dev", inner)
            _ip("-n", space, "link", "set", inner, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        for one, other in permutations(self._hosts, 2):
            self._neighbour(one, other, self._links[other])

    def _nodes_tag(self) -> str:
        number = os.getpid() & 0xFFFF
        return f"{number >> 8:02x}:{number & 255:02x}"


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"{' '.join(words)}: {found.stderr}"


Network = ProxiedNetwork | NamespaceNetwork
