"""Three brokers in this process elect their master; operators ask them how the group is, and for another master."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.app import BrokerApp
from broker.roles.group_requests import GroupRequests
from broker.roles.member import GroupMember
from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import GroupState, SyncStateData, decode_body
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.failures import not_master
from tests.support.ports import free_port
from tests.unit.broker.roles.cluster import Cluster, until


async def ask(app: BrokerApp, code: int, **fields: str) -> Command:
    connection = await connect("127.0.0.1", app.port)
    try:
        return await connection.request(Command(code, fields=fields))
    finally:
        await connection.close()


async def shown(app: BrokerApp) -> GroupState:
    answer = await ask(app, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA)
    (state,) = decode_body(answer.body, SyncStateData).replicas_info_table.values()
    return state


async def move(app: BrokerApp, to: int, *, designated: bool = True) -> Command:
    fields = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": str(to)}
    return await ask(app, RequestCode.CONTROLLER_ELECT_MASTER, **fields, designateElect=str(designated).lower())


async def test_the_state_of_a_group_and_another_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [free_port() for _ in range(3)]
    members = tuple(f"n{at}@127.0.0.1:{port}" for at, port in enumerate(ports, 1))
    group = Cluster(tmp_path, mode="dledger", members=members)
    try:
        await group.start_controller()
        apps = {at: await group.add(at, port=port) for at, port in enumerate(ports, 1)}
        await until(group.master)
        first = group.master()
        assert first is not None
        await until(lambda: len(first.status()["member"]["in_sync"]) == 3)
        await group.connect()
        assert await group.publish(b"1") == 0

        state = await shown(first)
        own = next(at for at, app in apps.items() if app is first)
        assert (state.mode, state.master_broker_id, state.master_address) == ("dledger", own, f"127.0.0.1:{first.port}")
        assert state.master_epoch == first._member.manager.elector.vote.term
        assert [each.broker_id for each in state.in_sync_replicas] == [1, 2, 3]
        assert all(each.alive for each in state.in_sync_replicas)
        other, third = (at for at in apps if at != own)
        seen = await shown(apps[other])
        assert (seen.master_broker_id, seen.in_sync_replicas, len(seen.not_in_sync_replicas)) == (own, [], 3)

        for to, designated, code in ((own, True, 2004), (9, True, 2004), (other, False, 29)):
            assert (await move(first, to, designated=designated)).code == code
        assert f"ask 127.0.0.1:{first.port}" in (await move(apps[other], third)).remark

        await not_in_time(first, other, monkeypatch)
        assert await group.publish(b"2") == 0
        while (answer := await move(first, other)).code == 2012:
            continue  # it did not have everything in time, on a busy machine
        assert (answer.code, answer.fields["masterBrokerId"]) == (0, str(other))
        assert answer.fields["masterAddress"] == f"127.0.0.1:{apps[other].port}"
        await leading(group, apps, other)
        assert await group.publish(b"3") == 0
        assert int(answer.fields["masterEpoch"]) <= (await shown(apps[other])).master_epoch
        await another_wins(apps[other], own, third, monkeypatch)
    finally:
        await group.stop()


async def leading(group: Cluster, apps: dict[int, BrokerApp], to: int) -> None:
    """Returns when this member leads: on a busy machine it may have lost that again meanwhile."""
    while True:
        await until(group.master)
        master = group.master()
        if master is apps[to]:
            return
        if master is not None:
            await move(master, to)


async def not_in_time(master: BrokerApp, to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that does not come to lead: the master goes on, with what came meanwhile."""
    member = master._member
    assert isinstance(member, GroupMember)
    late = await connect("127.0.0.1", master.port)
    with monkeypatch.context() as patch:
        patch.setattr(member.master.term, "complete", list)
        moving = asyncio.ensure_future(move(master, to))
        await until(lambda: not member.gate.serving)
        waiting = asyncio.ensure_future(late.request(Command(RequestCode.GET_ALL_TOPIC_CONFIG)))
        refused = await moving
    assert (refused.code, refused.remark) == (2012, "no other broker leads after 1.0 s")
    answer = await waiting
    assert (answer.code, not_master(answer), member.gate.serving) == (0, None, True)
    await late.close()


async def another_wins(master: BrokerApp, wanted: int, winner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third member comes to lead: that is no success."""
    manager = master._member.manager
    hand_over = manager.hand_over
    await until(lambda: len(master.status()["member"]["in_sync"]) == 3)
    with monkeypatch.context() as patch:
        patch.setattr(manager, "hand_over", lambda _to: hand_over(winner))
        while "no other broker leads" in str((answer := await move(master, wanted)).remark):
            continue  # it did not have everything in time, on a busy machine
    remark = str(answer.remark)
    assert answer.code == 2012
    assert remark.startswith(f"broker {winner} at ")
    assert remark.endswith(f"not broker {wanted}")


def test_another_master_is_an_administrators_wish() -> None:
    """Members register at this broker with their key, which does not suffice."""
    asked: list[tuple[str, str]] = []

    def policy(_identity: str, action: str, resource: str) -> bool:
        asked.append((action, resource))
        return False

    requests: Any = GroupRequests(SimpleNamespace(), Authorizer(policy))  # type: ignore[arg-type]
    handler = requests.handlers()[RequestCode.CONTROLLER_ELECT_MASTER]
    with pytest.raises(Refused, match="may not admin"):
        handler(SimpleNamespace(attributes={}, address="h:1"), Command(RequestCode.CONTROLLER_ELECT_MASTER))
    assert asked == [("admin", "request 1002")]
