"""Locks in strict mode: granted only when enough replicas agree, and taken back where that was in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.acting import quorum as quorum_module
from broker.acting.kinds import LOCKS
from broker.acting.quorum import LockQuorum, decode_claim
from broker.acting.replica import ActingReplica
from broker.config import BrokerConfig, ReplicationConfig
from broker.groups.locks import LOCK_EXPIRY_MS
from remoting.protocol.errors import LocalMisuse, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime.logs import get_logger
from tests.unit.broker.acting.test_locks import Peer, Standing, asking, tokens
from tests.unit.broker.roles.cluster import until


class Network:
    """Replicas by address; one that hangs never answers, one that is not there refuses."""

    def __init__(self) -> None:
        self.replicas: dict[str, Standing] = {}
        self.hanging: set[str] = set()
        self.lost: set[str] = set()

    async def dial(self, address: str) -> Link:
        if address in self.lost:
            raise ConnectionRefusedError(address)
        return Link(self, address)


class Link:
    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address

    async def request(self, command: Command, _timeout_ms: int) -> Command:
        if self.address in self.network.hanging:
            await asyncio.Event().wait()
        peer = Peer()
        self.network.replicas[self.address].locks.agree(peer, command)
        await until(lambda: peer.answers)
        return peer.answers[0]

    async def close(self) -> None:
        return


@pytest.fixture
def network(running, tmp_path: Path) -> Network:
    """Three replicas, of which `a` stands in; the group has five brokers."""
    made = Network()
    for name in "abc":
        (tmp_path / name).mkdir()
        made.replicas[name] = Standing(running, tmp_path / name)
    made.replicas["a"].locks._quorum = LockQuorum(5, lambda: {"b", "c"}, made.dial, get_logger("test"))
    return made


def kept(standing: Standing) -> list[str]:
    """The owners in its journal; a lock that was taken back has none."""
    return [client for _token, client in standing.journal.of(LOCKS).values()]


async def test_more_than_half_of_the_configured_brokers_agree(network: Network) -> None:
    standing = network.replicas["a"]
    first = tokens(await standing.ask(asking("x", 0)))
    assert [kept(each) for each in network.replicas.values()] == [["x"]] * 3, "each knows the owner"
    assert tokens(await standing.ask(asking("y", 0))) == {}
    assert tokens(await standing.ask(asking("x", 0))) == first


async def test_what_too_few_agree_to_is_taken_back(network: Network) -> None:
    network.lost = {"c"}
    standing = network.replicas["a"]
    assert tokens(await standing.ask(asking("x", 0, 1))) == {}
    await until(lambda: kept(network.replicas["b"]) == ["", ""])
    assert kept(standing) == []
    network.lost = set()
    assert list(tokens(await standing.ask(asking("y", 0)))) == [0], "nobody has it"


async def test_a_replica_that_hangs_is_a_no(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_module, "MEMBER_S", 0.05)
    network.hanging = {"b"}
    assert tokens(await network.replicas["a"].ask(asking("x", 0))) == {}


async def test_an_owner_without_a_majority_is_told_so_and_keeps_its_claim(network: Network) -> None:
    """It stops in time; nobody else gets the queue before the lock has expired."""
    standing = network.replicas["a"]
    first = tokens(await standing.ask(asking("x", 0)))
    network.lost = {"b", "c"}
    assert tokens(await standing.ask(asking("x", 0))) == {}
    network.lost = set()
    assert tokens(await standing.ask(asking("y", 0))) == {}
    assert tokens(await standing.ask(asking("x", 0))) == first


async def test_a_replica_agrees_to_nothing_that_it_gave_to_another(network: Network) -> None:
    for name in "bc":
        other = network.replicas[name]
        await Link(network, name).request(claim("y", 7), 1)
        other.now_ms = LOCK_EXPIRY_MS - 1
    standing = network.replicas["a"]
    assert tokens(await standing.ask(asking("x", 0))) == {}
    for name in "bc":
        network.replicas[name].now_ms = LOCK_EXPIRY_MS
    assert list(tokens(await standing.ask(asking("x", 0)))) == [0]


def claim(client_id: str, token: int) -> Command:
    body = b'{"consumerGroup":"g","clientId":"%s","mqSet":[{"topic":"t","queueId":0,"token":%d}]}'
    return Command(RequestCode.AGREE_LOCKS, body=body % (client_id.encode(), token))


async def test_who_is_no_broker_gets_no_agreement(running, tmp_path: Path) -> None:
    standing = Standing(running, tmp_path, running.broker.tools.authorizer)
    running.judge_by(lambda _identity, _action, _resource: False)
    with pytest.raises(Refused) as refused:
        standing.locks.agree(Peer(), claim("x", 1))
    assert refused.value.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"consumerGroup":"g"}', b'{"consumerGroup":"","clientId":"c","mqSet":[]}']
)
def test_malformed_claims_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_claim(body)


def test_strict_mode_needs_to_know_how_many_there_are(tmp_path: Path) -> None:
    class Controllers:
        def on_up(self, _call) -> None:
            return

        on_push = on_up

    config = BrokerConfig(
        data_directory=tmp_path,
        replication=ReplicationConfig(enabled=True, acting_master=True, lock_in_strict_mode=True),
    )
    with pytest.raises(LocalMisuse, match="group_size"):
        ActingReplica(
            config, Controllers(), store=lambda: None, epoch=lambda: 1, master_heard=lambda: False, master=lambda: "",
            authorizer=None, connect=None, log=get_logger("test"),
        )  # fmt: skip
