"""Three controllers as processes: their answers survive kill -9 of the leader, of a majority and of all."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import SyncStateData, decode_body
from remoting.protocol.frames.commands import Command
from tests.processes.controller_kills import run
from tests.processes.controllers import Asker, ControllerProcess, Controllers, IdTaker, known_ids

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    """Running ones that are ended after the test."""
    made = Controllers(tmp_path, snapshot_entries=10)
    try:
        made.start()
        made.wait_ready()
        yield made
    finally:
        made.kill_if_running()


async def test_decisions_continue_without_the_leader(controllers: Controllers) -> None:
    """Taken before, during and after; a restart of all of them keeps every one."""
    taker = IdTaker(controllers, "g")
    for _ in range(15):
        await taker.take()
    leader = await controllers.leader()
    leader.kill()
    for _ in range(15):
        await taker.take()
    controllers.start()
    for _ in range(15):
        await taker.take()
    for each in controllers.processes:
        each.kill()
    controllers.start()
    assert set(taker.answered) <= await known_ids(controllers)
    await taker.take()


async def told(controllers: Controllers, port: int, admin: int) -> tuple[str | None, str | None, int, bool]:
    """One controller's view: the leader's address, whether it leads, its readiness, and leadership by its metrics."""
    client = Asker(controllers)
    client.port = port
    answer = (await client.ask(1005)).fields
    await client.close()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=30) as page:
            status = page.status
    except urllib.error.HTTPError as error:
        status = error.code
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=30) as page:
        leads = "rocketmq_controller_leading 1.0" in page.read().decode()
    return answer.get("controllerLeaderAddress"), answer.get("isLeader"), status, leads


async def test_followers_point_at_the_leader_and_are_ready(controllers: Controllers) -> None:
    """By 2007 with an address, by 1005, and on /readyz; once all agree, for a busy machine may elect another one."""
    async with asyncio.timeout(120):
        while True:
            leader = await controllers.leader()
            said = [await told(controllers, each.port, each.ports["admin"]) for each in controllers.processes]
            address, leading = f"127.0.0.1:{leader.port}", [each is leader for each in controllers.processes]
            if said == [(address, str(one).lower(), 200, one) for one in leading]:
                break
    for each in controllers.processes:
        client = Asker(controllers)
        client.port = each.port
        await client.ask(1006, b"[]")
        assert client.port == (await controllers.leader()).port
        await client.close()


@pytest.mark.parametrize(("engine", "forked"), [("dledger", False), ("pysyncobj", True)])
async def test_kills_at_random(tmp_path: Path, engine: str, *, forked: bool) -> None:
    """A short form of `python -m tests.processes.controller_kills`."""
    account = await run(tmp_path, 4, seed=3, engine=engine, forked=forked)
    assert account.kills.total() == 4
    assert json.dumps(account.kills)


async def test_a_paused_leader_answers_no_stale_read(controllers: Controllers) -> None:
    """The read waits in its socket while another one leads; the old leader sees it first when it continues."""
    taker = IdTaker(controllers, "g")
    await taker.take()
    leader = await controllers.leader()
    assert isinstance(leader, ControllerProcess)
    assert leader.process is not None
    connection = await connect("127.0.0.1", leader.port)
    leader.process.send_signal(signal.SIGSTOP)
    read = asyncio.ensure_future(connection.request(Command(1006, body=b"[]"), 60_000))
    for _ in range(3):
        await taker.take()
    leader.process.send_signal(signal.SIGCONT)
    answer = await read
    await connection.close()
    if answer.code == 0:
        table = decode_body(answer.body, SyncStateData).replicas_info_table
        assert len(table["g-0"].not_in_sync_replicas) == 4
    else:
        assert answer.code == 2007
