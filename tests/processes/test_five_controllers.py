"""Five controllers as processes: two may die, the loss of a third is reported, nothing is forgotten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.processes.controllers import Controllers, IdTaker, known_ids

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
    """A restart of all five with one empty disk: everything is known, also to a controller that joins afterwards."""
    taker = IdTaker(controllers, "g")
    for _ in range(25):
        await taker.take()
    for each in controllers.processes:
        each.kill()
    wiped = controllers.processes[2]
    shutil.rmtree(tmp_path / wiped.node_id)
    controllers.start()
    await taker.take()
    assert set(taker.answered) <= await known_ids(controllers)
    leader = await controllers.leader()
    async with asyncio.timeout(60):
        while not list((tmp_path / wiped.node_id).rglob("snapshot")):
            await taker.take()
    for each in [each for each in controllers.processes if each not in (wiped, leader)][:2]:
        each.kill()
    await taker.take()
    assert set(taker.answered) <= await known_ids(controllers)
