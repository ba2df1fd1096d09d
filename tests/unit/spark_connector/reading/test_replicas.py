"""Which replicas there are, and in which order a task asks them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from remoting import clock
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo
from spark_connector.errors import BrokerUnreachable, OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading import replicas
from spark_connector.reading.replicas import FRESH_S, MEASURED_S, Distances, ReplicaWatch, ShortCuts, order

Options = Callable[..., ReadOptions]
A, B, C, MASTER = ("a", 1), ("b", 1), ("c", 1), ("m", 1)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds."""
    at = [100.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: at[0])
    return at


def test_the_name_servers_are_asked_now_and_then(
    read_options: Options, monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    """Id 0 is the master, whatever is no address is left out, and without an answer the list stays."""
    answers: list[ClusterInfo | BrokerUnreachable] = [
        ClusterInfo({"g": BrokerData("c", "g", {0: "m:1", 3: "b:1", 2: "a:1", 4: "?"})}),
        BrokerUnreachable("gone"),
        ClusterInfo({"g": BrokerData("c", "g", {0: "a:1", 3: "b:1"})}),
    ]
    asked: list[float] = []

    def broker_groups(_options: object, *, replicas: bool) -> ClusterInfo:
        assert replicas
        asked.append(now[0])
        answer = answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    monkeypatch.setattr(replicas, "broker_groups", broker_groups)
    watch = ReplicaWatch(read_options(topic="t", readFrom="nearest"))
    for at, known in ((0, (A, B)), (FRESH_S - 1, (A, B)), (FRESH_S, (A, B)), (2 * FRESH_S, (B,))):
        now[0] = 100 + at
        assert watch.known() == {"g": known}
    assert asked == [100, 100 + FRESH_S, 100 + 2 * FRESH_S]
    assert ReplicaWatch(read_options(topic="t")).known() == {}
    assert len(asked) == 3


def test_tasks_are_spread_over_replicas() -> None:
    assert [order("replica", [A, B, C], MASTER, turn) for turn in range(4)] == [
        [A, B, C], [B, C, A], [C, A, B], [A, B, C],
    ]  # fmt: skip
    assert order("replica", [], MASTER, 5) == []


def test_the_nearest_comes_first_and_none_behind_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equally near ones the master is read: it has everything."""
    far = {A: 0.3, B: 0.1, C: 0.9, MASTER: 0.5}
    monkeypatch.setattr(Distances, "of", lambda _self, address: far[address])
    assert order("nearest", [A, B, C], MASTER, 0) == [B, A]
    far[MASTER] = 0.1
    assert order("nearest", [A, B, C], MASTER, 0) == []
    far[MASTER] = float("inf")
    assert order("nearest", [A, B, C], MASTER, 1) == [B, A, C]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_distances_are_measured_once_for_a_while(listening: socket.socket, now: list[float]) -> None:
    """This machine is at no distance, and who cannot be reached is farther than any other."""
    distances, address = Distances(), listening.getsockname()
    assert distances.of(address) == 0
    listening.close()
    now[0] += MEASURED_S - 1
    assert distances.of(address) == 0
    now[0] += 1
    assert distances.of(address) == float("inf")


def test_short_cuts_of_some_groups() -> None:
    known = ShortCuts({"g": A, "h": B}, {"g": (B,), "h": (C,)})
    assert known.among(["g"]) == ShortCuts({"g": A}, {"g": (B,)})


def test_an_unknown_choice_names_the_nearest(read_options: Options) -> None:
    with pytest.raises(OptionError, match=r"readFrom.*master, replica, nearest.*'replica'"):
        read_options(topic="t", readFrom="replicas")
