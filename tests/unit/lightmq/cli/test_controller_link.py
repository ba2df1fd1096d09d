"""The leading controller is found from any address, and failures are reported."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lightmq.cli.connections import ServerTarget, leading_controller
from lightmq.cli.outcome import CommandFailed
from tests.unit.lightmq.cli.fake_controller import FakeController


@pytest.fixture
def follower() -> Iterator[FakeController]:
    server = FakeController()
    server.leads = False
    yield server
    server.stop()


def unused() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_the_leader_is_asked_whichever_was_named(controller: Any, follower: FakeController) -> None:
    """A dead one is skipped, one that follows names the leader."""
    follower.leader = controller.address
    target = ServerTarget(server=f"{unused()}, {follower.address}")
    with leading_controller(target) as found:
        assert found.address == controller.address
        assert list(found.groups()) == ["broker-a"]


def test_without_a_leader_all_are_named(follower: FakeController) -> None:
    """Those that answer and do not know, and those that do not answer."""
    dead = unused()
    target = ServerTarget(server=f"{follower.address},{dead}")
    with pytest.raises(CommandFailed, match=r"no controller leads.*more than half") as told, leading_controller(target):
        pass
    assert dead in str(told.value)


def test_a_leader_that_is_down(follower: FakeController) -> None:
    """It was named and cannot be reached; another controller may know the new one."""
    follower.leader = unused()
    target = ServerTarget(server=follower.address)
    with pytest.raises(CommandFailed, match=r"names .* as the leader; .*cannot reach"), leading_controller(target):
        pass


def test_the_next_address_is_asked_when_a_named_leader_is_down(follower: FakeController, controller: Any) -> None:
    """A follower that has not noticed yet does not end the command."""
    follower.leader = unused()
    with leading_controller(ServerTarget(server=f"{follower.address},{controller.address}")) as found:
        assert found.address == controller.address
        assert found.unreachable([controller.address, follower.address, follower.leader]) == {follower.leader}


def test_what_is_not_a_controller_is_reported(controller: Any) -> None:
    """A broker, or an older name server."""
    controller.is_controller = False
    with (
        pytest.raises(CommandFailed, match="is not a controller"),
        leading_controller(ServerTarget(server=controller.address)),
    ):
        pass


def test_leadership_that_moved_meanwhile(controller: Any) -> None:
    """Between the request for the leader and the next one."""
    with leading_controller(ServerTarget(server=controller.address)) as found:
        controller.leads = False
        with pytest.raises(CommandFailed, match="try again"):
            found.groups()


def test_a_broker_that_reports_no_epochs(controller: Any) -> None:
    """The reason replaces the answer, because the others may still report theirs."""
    with leading_controller(ServerTarget(server=controller.address)) as found:
        told = found.epochs(controller.address)
        assert not isinstance(told, str)
        assert told.max_offset == 160
        assert "cannot reach" in str(found.epochs(unused()))
        assert found.cluster_of("broker-a") == "plant"
        assert found.cluster_of("unknown") == "DefaultCluster"
