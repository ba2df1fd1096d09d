"""Namespaces really cut: one direction, both, between two nodes alone; nothing of them remains."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.network import HERE, NamespaceNetwork

LISTEN = """
import socket, sys
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind((sys.argv[1], 7777))
print("bound", flush=True)
while True:
    data, peer = link.recvfrom(100)
    print(data.decode(), flush=True)
    link.sendto(data, peer)
"""
QUIET_S = 0.5
DEADLINE_S = 20.0

pytestmark = pytest.mark.skipif(not NamespaceNetwork.possible(), reason="network namespaces need root and the tool ip")


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    made = NamespaceNetwork(["a", "b"])
    yield made
    made.close()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert made._tag not in left


@pytest.fixture
def listener(network: NamespaceNetwork) -> Iterator[subprocess.Popen[str]]:
    """A process in a that prints and returns every datagram."""
    command = [*network.prefix_of("a"), sys.executable, "-c", LISTEN, network.host("a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "bound\n"
    yield process
    process.kill()
    process.wait(DEADLINE_S)
    process.stdout.close()


def answered(network: NamespaceNetwork, text: str, deadline_s: float) -> bool:
    """Whether a datagram from here is returned."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind((network.host(HERE), 0))
        link.settimeout(deadline_s)
        link.sendto(text.encode(), (network.host("a"), 7777))
        try:
            return link.recv(100) == text.encode()
        except TimeoutError:
            return False


def test_cuts_and_healing(network: NamespaceNetwork, listener: subprocess.Popen[str]) -> None:
    """Towards the node nothing arrives; away from it its answers are lost; healed, all arrives."""
    assert listener.stdout is not None
    assert answered(network, "one", DEADLINE_S)
    network.cut("a", frozenset({IN}))
    assert not answered(network, "two", QUIET_S)
    network.heal("a")
    network.cut("a", frozenset({OUT}))
    assert not answered(network, "three", QUIET_S)
    network.heal("a")
    assert answered(network, "four", DEADLINE_S)
    heard = [listener.stdout.readline().strip() for _ in range(3)]
    assert heard == ["one", "three", "four"]


def test_a_partial_cut_is_partial(network: NamespaceNetwork, listener: subprocess.Popen[str]) -> None:
    """a and b do not reach each other, a and the clients do."""
    network.cut("a", frozenset({IN, OUT}), ["b"])
    assert answered(network, "one", DEADLINE_S)
    probe = (
        "import socket, sys\n"
        "link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"link.settimeout({QUIET_S})\n"
        "link.sendto(b'x', (sys.argv[1], 7777))\n"
        "try: link.recv(1)\n"
        "except TimeoutError: sys.exit(3)\n"
    )
    command = [*network.prefix_of("b"), sys.executable, "-c", probe, network.host("a")]
    assert subprocess.run(command, check=False).returncode == 3
    network.heal("a")
    assert subprocess.run(command, check=False).returncode == 0


def test_a_slow_network_is_slow_and_recovers(network: NamespaceNetwork, listener: subprocess.Popen[str]) -> None:
    """Of more than a node's cable carries some is lost; healed, nothing is delayed."""
    assert answered(network, "one", DEADLINE_S)
    network.slow("a", 100, 50)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for _ in range(400):
            link.sendto(bytes(1_000), (network.host("a"), 7778))
    buckets = [discipline(network, *end) for end in network._cable("a")]
    assert all(" tbf " in each for each in buckets)
    assert "dropped 0" not in buckets[1]  # at the outer end, towards the node
    network.heal("a")
    network.heal("a")  # nothing is left to undo
    assert not any(" tbf " in discipline(network, *end) for end in network._cable("a"))
    assert answered(network, "two", DEADLINE_S)


def discipline(network: NamespaceNetwork, inside: list[str], device: str) -> str:
    """The queueing discipline at one end of a cable."""
    command = ["tc", *inside, "-s", "qdisc", "show", "dev", device]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_loss_ends_with_healing(network: NamespaceNetwork, listener: subprocess.Popen[str]) -> None:
    """Under full loss nothing passes, healed everything does."""
    network.lose("a", 1.0, 1)
    while answered(network, "x", QUIET_S):
        pass  # the first turn has not begun yet
    network.heal("a")
    assert answered(network, "y", DEADLINE_S)
