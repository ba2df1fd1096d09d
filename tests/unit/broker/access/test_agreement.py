"""Brokers that share the users of their controllers: a real controller with an access list, brokers on real stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import structlog

from broker.access.replica import RememberedUsers, ReplicaUsers
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting import inprocess
from remoting.access.agreement import UserState, Version
from remoting.access.key_policy import KeyPolicy
from remoting.access.users import User, UserTable
from remoting.client.controllers import Controllers
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import TRUSTED_ATTRIBUTE, Authorizer
from remoting.server.router import Router
from remoting.transport.contracts import Connection
from remoting.transport.signature import ACCESS_KEY_FIELD
from runtime.files import WatchedFile
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.broker.access.test_feature import ask, create, rule, rules
from tests.unit.broker.conftest import BrokerBench


class Cluster:
    """One controller, which may be another one after it lost its disk, and brokers that reach it in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rules").write_text("user ops\nrole admin\n")
        self.links: list[Controllers] = []
        self.brokers: list[BrokerBench] = []
        self.begun = 0
        self.reachable = True

    async def begin(self, *, listed: bool = True) -> None:
        """A controller on a fresh directory."""
        self.begun += 1
        access_list = self.folder / "rules" if listed else None
        config = ControllerConfig(data_directory=self.folder / f"c{self.begun}", access_list=access_list)
        self.controller = ControllerApp(config, listen=False)
        await self.controller.start()
        self.controller.announce("127.0.0.1", 1)
        self.router = Router(self.controller.handlers)

    async def dial(self, _address: str) -> Connection:
        if not self.reachable:
            raise OSError("no controller")
        connection = inprocess.connect(lambda peer, command: self.router(peer, command))
        connection.peer.attributes[TRUSTED_ATTRIBUTE] = True
        return connection

    async def broker(self) -> BrokerBench:
        """A master of a group of its own."""
        number = len(self.brokers)
        policy = KeyPolicy(self.folder / "rules", structlog.get_logger(), WatchedFile)
        bench = BrokerBench(
            self.folder / f"b{number}", ManualClock(), access_keys=("ops:o",), broker_name=f"b-{number}"
        )
        bench.judge_by(policy)
        bench.broker.access.start()
        self.brokers.append(bench)
        return bench

    async def join(self, bench: BrokerBench) -> None:
        """Let the broker's users be those of the cluster."""
        link = Controllers(("127.0.0.1:1",), self.dial, timeout_ms=2_000)
        self.links.append(link)
        up = asyncio.get_running_loop().create_future()
        link.on_up(lambda *_: up.done() or up.set_result(None))
        link.start()
        if self.reachable:
            await up
        bench.broker.access.agree_with(link)

    async def end(self) -> None:
        for bench in self.brokers:
            bench.broker.access.stop()
            bench.store.close()
        await asyncio.gather(*(link.stop() for link in self.links))
        await self.controller.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.begin()
    yield made
    await made.end()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what follows within a second or two."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def secrets_of(bench: BrokerBench) -> dict[str, str]:
    policy = bench.broker.tools.authorizer.policy
    assert isinstance(policy, KeyPolicy)
    return dict(policy.secrets)


async def test_what_one_broker_is_asked_all_have_and_the_others_may_be_asked_too(cluster):
    first, second = await cluster.broker(), await cluster.broker()
    await cluster.join(first)
    await cluster.join(second)
    assert (await create(first)).code == 0
    assert (await ask(first, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule()))).code == 0
    shown = await ask(second, Code.AUTH_LIST_ACL)
    assert [each["subject"] for each in json.loads(shown.body)] == ["User:ann"]
    for again in (
        await create(second),
        await ask(second, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule())),
    ):
        assert again.code == ResponseCode.SUCCESS, again.remark
    assert (await create(second, password="another")).code == ResponseCode.INVALID_PARAMETER
    policy = cluster.controller.authorizer.policy
    await until(lambda: policy.secrets == {"ann": "a-secret"} and policy("ann", "locate", "orders"))
    for bench in (first, second):
        gone = await ask(bench, Code.AUTH_DELETE_ACL, subject="User:ann", resource="Topic:orders")
        assert gone.code == ResponseCode.SUCCESS
    for bench in (first, second):
        assert (await ask(bench, Code.AUTH_DELETE_USER, username="ann")).code == ResponseCode.SUCCESS
    await until(lambda: not secrets_of(first) and not policy.secrets)


async def test_brokers_that_change_at_once_lose_nothing(cluster):
    both = [await cluster.broker(), await cluster.broker()]
    for bench in both:
        await cluster.join(bench)
    answers = await asyncio.gather(*(create(both[at % 2], f"user-{at}") for at in range(20)))
    done = {f"user-{at}" for at, answer in enumerate(answers) if answer.code == 0}
    assert {answer.code for answer in answers} <= {0, ResponseCode.SYSTEM_BUSY}
    assert done
    for bench in both:
        listed = json.loads((await ask(bench, Code.AUTH_LIST_USER)).body)
        assert {user["username"] for user in listed} == done


async def test_a_replica_proposes_changes_too_but_never_the_first_table(cluster):
    """mqadmin sends changes for a cluster to replicas as well; its master's log may have users it knows nothing of."""
    bench = await cluster.broker()
    await cluster.join(bench)
    policy = KeyPolicy(cluster.folder / "rules", structlog.get_logger(), WatchedFile)
    link = cluster.links[0]
    config, log = bench.config, structlog.get_logger()
    replica = ReplicaUsers(config, Authorizer(policy), link, link.find_leader, Registry(), log)
    connection = inprocess.connect(Router(replica.handlers()))
    body = json.dumps({"password": "a-secret"}).encode()

    async def asked() -> Command:
        fields = {ACCESS_KEY_FIELD: "ops", "username": "ann"}
        return await connection.request(Command(Code.AUTH_CREATE_USER, fields=fields, body=body))

    assert (await asked()).code == ResponseCode.SYSTEM_BUSY
    assert (await create(bench)).code == 0
    assert (await asked()).code == 0
    assert policy.secrets == {"ann": "a-secret"}
    replica.start()
    assert (await ask(bench, Code.AUTH_DELETE_USER, username="ann")).code == 0
    await until(lambda: policy.secrets == {})
    replica.stop()


def test_what_a_replica_remembers_is_in_force():
    seen: list[UserTable] = []
    users = RememberedUsers(seen.append)
    users.write([UserState(name="ann", user=User(secret="x"))], Version("first", 1))
    users.write([])
    assert (users.version, users.position) == (Version("first", 1), 0)
    assert [sorted(table.users) for table in seen] == [["ann"], ["ann"]]


async def test_a_log_with_users_hands_them_over_to_controllers_that_have_none(cluster):
    bench, other = await cluster.broker(), await cluster.broker()
    await create(bench)
    await ask(bench, Code.AUTH_CREATE_ACL, subject="User:ann", body=rules(rule()))
    await cluster.join(bench)
    await until(lambda: cluster.controller.authorizer.policy.secrets == {"ann": "a-secret"})
    await cluster.join(other)
    await until(lambda: secrets_of(other) == {"ann": "a-secret"})
    await cluster.controller.stop()
    await cluster.begin()
    assert (await create(other, "bob")).code == 0
    assert (await ask(bench, Code.AUTH_LIST_USER, filter="bob")).code == 0
    assert sorted(secrets_of(bench)) == ["ann", "bob"]


async def test_users_are_there_again_after_a_restart_without_any_controller(cluster):
    bench = await cluster.broker()
    await cluster.join(bench)
    await create(bench)
    bench.broker.access.stop()
    policy = bench.broker.tools.authorizer.policy
    cluster.reachable = False
    await bench.restart()
    bench.judge_by(policy)
    bench.broker.access.start()
    await cluster.join(bench)
    assert secrets_of(bench) == {"ann": "a-secret"}
    assert json.loads((await ask(bench, Code.AUTH_GET_USER, username="ann")).body)["username"] == "ann"
    refused = await create(bench, "bob")
    assert (refused.code, "no controller leads" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    assert sorted(secrets_of(bench)) == ["ann"]


async def test_controllers_keep_the_users_over_a_restart(cluster):
    bench = await cluster.broker()
    await cluster.join(bench)
    await create(bench)
    bench.broker.access.stop()
    await cluster.controller.stop()
    cluster.begun -= 1
    await cluster.begin()
    await until(lambda: cluster.controller.authorizer.policy.secrets == {"ann": "a-secret"})


async def test_controllers_without_an_access_list_refuse_by_name(tmp_path):
    cluster = Cluster(tmp_path)
    await cluster.begin(listed=False)
    bench = await cluster.broker()
    await cluster.join(bench)
    answer = await create(bench)
    assert (answer.code, "controller.access_list" in answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, True)
    assert not secrets_of(bench)
    await cluster.end()


async def test_a_table_too_large_to_hand_over_stays_in_force_where_it_is(cluster):
    bench = await cluster.broker()
    bench.broker.access._created.write(
        [UserState(name=f"{at:0250}", user=User(secret="s" * 256)) for at in range(2_100)]
    )
    await cluster.join(bench)
    answer = await create(bench)
    assert (answer.code, "controllers take" in answer.remark) == (ResponseCode.INVALID_PARAMETER, True)
    assert len(secrets_of(bench)) == 2_100
