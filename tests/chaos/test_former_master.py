"""A master that is cut off from its group, and still reached by clients: it sends nobody back who was at its successor.

With controllers it takes itself for the master for as long as the cut lasts, and its log ends before the successor's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.chaos.cluster import Cluster, Node
from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.network import NamespaceNetwork
from tests.unit.broker.rocketmq.test_pull import pulling

pytestmark = [
    pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300),
    pytest.mark.skipif(not NamespaceNetwork.possible(), reason="network namespaces need root and the tool ip"),
]  # fmt: skip

TOPIC = "former"
DEADLINE_S = 60.0
ANSWER_MS = 10_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    names = {"c1": "controller", "b1": "broker", "b2": "broker", "b3": "broker"}
    made = Cluster(tmp_path, NamespaceNetwork(list(names)), names)
    try:
        made.start()
        yield made
    finally:
        made.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def masters(cluster: Cluster) -> list[Node]:
    """The brokers that take themselves for the master of all three."""
    found = []
    for node in cluster.of("broker"):
        try:
            if cluster.status(node)["member"]["role"] == "master":
                found.append(node)
        except OSError:
            continue
    return found


def asked(cluster: Cluster, node: Node, command: Command) -> Command:
    with BlockingConnection.dial(cluster.address(node), ANSWER_MS) as link:
        return link.request(command)


def send(cluster: Cluster, node: Node, body: bytes) -> None:
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    checked(asked(cluster, node, Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body)))


def pulled(cluster: Cluster, node: Node, offset: int) -> tuple[int, int]:
    """Code of the answer, and where the reader continues."""
    reply = asked(cluster, node, pulling(TOPIC, offset))
    return reply.code, int(reply.fields["nextBeginOffset"])


def test_nobody_is_sent_back_by_a_former_master(cluster: Cluster) -> None:
    until(lambda: len(masters(cluster)) == 1, "nobody is the master")
    (former,) = masters(cluster)
    until(lambda: len(cluster.status(former)["member"]["in_sync"]) == 3, "not all are in sync")
    for body in (b"1", b"2", b"3"):
        send(cluster, former, body)
    others = [name for name in cluster.nodes if name != former.name]
    cluster.network.cut(former.name, frozenset({IN, OUT}), others)
    until(lambda: len(masters(cluster)) == 2, "nobody else became the master")
    (successor,) = (each for each in masters(cluster) if each is not former)
    for body in (b"4", b"5"):
        send(cluster, successor, body)
    assert pulled(cluster, successor, 0) == (ResponseCode.SUCCESS, 5)
    assert pulled(cluster, former, 0) == (ResponseCode.SUCCESS, 3), "it has what was shown before, and no more"
    assert pulled(cluster, former, 5) == (ResponseCode.PULL_NOT_FOUND, 5)
    assert former in masters(cluster), "it knew of its successor: nothing was tried"
    cluster.network.heal(former.name)
    until(lambda: masters(cluster) == [successor], "the former master does not follow")
    assert pulled(cluster, successor, 9) == (ResponseCode.PULL_OFFSET_MOVED, 5)
