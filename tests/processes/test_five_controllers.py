"""Five controllers as processes: two may die, the loss of a third is reported, nothing is forgotten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import ControllerList, ControllerState, decode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.processes.controllers import Asker, Controllers, IdTaker, known_ids

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

IDENTITY = {"clusterName": "C", "brokerName": "late", "appliedBrokerId": "1", "registerCheckCode": "late"}


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    """Five running ones that are ended after the test."""
    made = Controllers(tmp_path, 5, forked=True, snapshot_entries=10)
    made.start()
    yield made
    made.kill_if_running()


async def answer_of(port: int, command: Command) -> Command:
    """One controller's own answer."""
    connection = await connect("127.0.0.1", port)
    try:
        return await connection.request(command, 10_000)
    finally:
        await connection.close()


async def refusals(controllers: Controllers) -> list[Command]:
    """How every running controller refuses a decision, once none of them believes in the dead leader."""
    async with asyncio.timeout(60):
        while True:
            ports = [each.port for each in controllers.processes if each.running]
            answers = [await answer_of(port, Command(1013, fields=dict(IDENTITY))) for port in ports]
            assert all(each.code == ResponseCode.CONTROLLER_NOT_LEADER for each in answers)
            if not any(each.fields.get("leaderAddress") for each in answers):
                return answers
            await asyncio.sleep(0.05)


async def listed(controllers: Controllers) -> dict[str, ControllerState]:
    """The members as the leader has them."""
    asker = Asker(controllers)
    try:
        found = decode_body((await asker.ask(RequestCode.LIST_CONTROLLERS)).body, ControllerList)
    finally:
        await asker.close()
    return {each.node_id: each for each in found.controllers}


async def replace(controllers: Controllers, node_id: str) -> None:
    """Remove one and add it again, and wait until it votes."""
    one, asker = (await listed(controllers))[node_id], Asker(controllers)
    for change in ({"remove": node_id}, {"add": f"{node_id}@{one.address}@{one.raft_port}"}):
        answer = await asker.ask(RequestCode.CHANGE_CONTROLLERS, **change)
        assert answer.code == 0, answer.remark
    await asker.close()
    async with asyncio.timeout(60):
        while (await listed(controllers))[node_id].role == "learner":
            await asyncio.sleep(0.05)


async def test_two_may_die_and_three_may_not(controllers: Controllers) -> None:
    """The leader and another one, then a third: the two that are left refuse and name no leader; no answer is lost."""
    taker = IdTaker(controllers, "g")
    for _ in range(15):
        await taker.take()
    leader = await controllers.leader()
    others = [each for each in controllers.processes if each is not leader]
    for each in (leader, others[0]):
        each.kill()
    for _ in range(15):
        await taker.take()
    (await controllers.leader()).kill()
    assert {each.remark for each in await refusals(controllers)} == {
        "this controller does not lead, no controller does now"
    }
    controllers.start()
    for _ in range(5):
        await taker.take()
    assert set(taker.answered) <= await known_ids(controllers)


async def test_all_at_once_and_an_empty_disk(controllers: Controllers, tmp_path: Path) -> None:
    """A restart of all five with one empty disk: everything is known, also to the one that takes its place."""
    taker = IdTaker(controllers, "g")
    for _ in range(25):
        await taker.take()
    async with asyncio.timeout(60):
        while not all(each.directory for each in (await listed(controllers)).values()):
            await asyncio.sleep(0.05)
    for each in controllers.processes:
        each.kill()
    wiped = controllers.processes[2]
    shutil.rmtree(tmp_path / wiped.node_id)
    controllers.start()
    await taker.take()
    assert set(taker.answered) <= await known_ids(controllers)
    await replace(controllers, wiped.node_id)
    leader = await controllers.leader()
    async with asyncio.timeout(60):
        while not list((tmp_path / wiped.node_id).rglob("snapshot")):
            await taker.take()
    for each in [each for each in controllers.processes if each not in (wiped, leader)][:2]:
        each.kill()
    await taker.take()
    assert set(taker.answered) <= await known_ids(controllers)
