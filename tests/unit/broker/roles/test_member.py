"""Whole members of a group: roles change under clients, acknowledged messages stay, replicas answer NOT_MASTER."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.member_log import MemberLog
from broker.roles.replicas_manager import ReplicasManager
from broker.roles.steps import KnownGroup
from broker.store.errors import UnreadableOffsets
from broker.store.log_store import LogStore
from remoting.client.connection import connect
from remoting.protocol.bodies.controller_body import EpochCache, decode_body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.protocol.records.image import encode_mqtt_image
from remoting.transport.failures import not_master
from tests.unit.broker.roles.cluster import STORE, Cluster, cluster, log_bytes, until


def count(app: BrokerApp) -> int:
    """How many messages of the topic are confirmed here."""
    store = app._member.store
    queue = None if store is None else store.queues.find(names.light_queue_name(b"plant/1"))
    return 0 if queue is None else store.reading.bounds(queue)[1]


async def test_the_group_continues_when_its_master_stops(tmp_path: Path) -> None:
    """Nothing acknowledged is missing, a replica names the master, the former one returns as a replica."""
    async with cluster(tmp_path, 3, in_sync_min=2) as group:
        first = group.master()
        assert await group.publish(b"1", b"2") == 0
        replica = next(app for app in group.brokers.values() if app is not first)
        direct = await connect("127.0.0.1", replica.port)
        answer = await direct.request(Command(RequestCode.APPEND_MANY))
        assert (answer.code, answer.fields["masterAddress"]) == (9101, f"127.0.0.1:{first.port}")
        await direct.close()
        number = next(number for number, app in group.brokers.items() if app is first)
        await first.stop()
        assert await group.publish(b"3") == 0
        second = group.master()
        assert second is not first
        assert count(second) >= 3
        again = await group.add(number)
        await group.settle(*group.brokers)
        assert await group.publish(b"4") == 0
        await until(lambda: count(again) == count(second) >= 4)
        assert again._member.store.replica.epochs == second._member.store.replica.epochs
        assert again._member.client.following.log_copy.lost_confirmed_bytes == 0
        assert again.status()["member"]["role"] == "replica"


async def test_what_only_the_old_master_had_is_truncated_when_it_returns(tmp_path: Path) -> None:
    """It wrote what was never acknowledged; the group continued without it."""
    async with cluster(tmp_path, 2) as group:
        assert await group.publish(b"1") == 0
        first = group.master()
        number = next(number for number, app in group.brokers.items() if app is first)
        other = next(app for app in group.brokers.values() if app is not first)
        await until(lambda: other._member.store.end_position == first._member.store.end_position)
        await other._member.client.stop()
        lost = asyncio.ensure_future(group.publish(b"lost"))
        await until(lambda: first._member.store.end_position > other._member.store.end_position)
        group.uplink.line.drop("for the test")
        lost.cancel()
        await first.stop()
        await until(lambda: group.master() is other)
        assert await group.publish(b"2") == 0
        again = await group.add(number)
        await group.settle(*group.brokers)
        assert count(other) == 2
        assert again._member.client.following.log_copy.cuts == 1
        assert again._member.store.replica.epochs == other._member.store.replica.epochs


async def test_async_waits_for_no_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the master's nor the replicas': what all have written is acknowledged."""
    store = replace(STORE, flush="async", flush_interval_ms=3_600_000)
    monkeypatch.setattr("tests.unit.broker.roles.cluster.STORE", store)
    async with cluster(tmp_path, 2, in_sync_min=2) as group:
        assert await group.publish(b"1", b"2") == 0
        for app in group.brokers.values():
            await until(lambda app=app: count(app) == 2)
            assert app._member.manager.own.identity.flush == "async"


async def test_clients_waiting_for_a_replaced_master_are_told_at_once(tmp_path: Path) -> None:
    """Perhaps kept, perhaps lost, and the present master: RocketMQ's clients and LightMQ's learn it from one answer."""
    async with cluster(tmp_path, 2, in_sync_min=2, absence_limit_ms=60_000) as group:
        assert await group.publish(b"1") == 0
        first = group.master()
        member, steps = first._member, first._member.manager.steps
        other = next(app for app in group.brokers.values() if app is not first)
        await other._member.client.stop()
        direct, client = await connect("127.0.0.1", first.port), await connect("127.0.0.1", first.port)
        end = member.store.end_position
        body = b"".join([encode_mqtt_image(b"plant/1", b"2", 1, 1, b"device")])
        fields = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
        append = asyncio.ensure_future(direct.request(Command(RequestCode.APPEND_MANY, body=body)))
        send = asyncio.ensure_future(client.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"3")))
        await until(lambda: member.store.end_position > end and member.serving.broker.topics.table.get("orders"))
        moved = f"127.0.0.1:{other.port}"
        member.manager._apply_view(KnownGroup(steps.epoch + 1, other._member.manager.steps.broker_id, moved))
        for answer in (await append, await send):
            denial = not_master(answer)
            assert (answer.code, denial.address, denial.is_begun) == (14, moved, True)
            assert "may be kept or lost" in answer.remark
        await direct.close()
        await client.close()


async def test_a_master_that_stops_hands_over_first(tmp_path: Path) -> None:
    """What it has taken is confirmed and acknowledged, and what comes meanwhile is told the next master's address."""
    async with cluster(tmp_path, 3, in_sync_min=2) as group:
        assert await group.publish(b"1") == 0
        first = group.master()
        member = first._member
        direct, late = await connect("127.0.0.1", first.port), await connect("127.0.0.1", first.port)
        body = encode_mqtt_image(b"plant/1", b"2", 1, 1, b"device")
        taken = asyncio.ensure_future(direct.request(Command(RequestCode.APPEND_MANY, body=body)))
        end = member.store.end_position
        await until(lambda: member.store.end_position > end)
        hand_over, asked = member.manager.hand_over, []

        async def handing_over(successor: int | None) -> None:
            asked.append(asyncio.ensure_future(late.request(Command(RequestCode.APPEND_MANY, body=body))))
            await until(lambda: member.gate._held.requests)
            await hand_over(successor)

        member.manager.hand_over = handing_over
        stopping = asyncio.ensure_future(first.stop())
        await until(lambda: asked)
        answer = await asked[0]
        denial, next_master = not_master(answer), member.manager.steps.view
        assert (denial.address, denial.epoch, denial.is_begun) == (next_master.address, next_master.epoch, False)
        assert (await taken).code == 0
        await stopping
        await until(group.master)
        assert next_master.address == f"127.0.0.1:{group.master().port}"
        assert group.controller.plane.masters.counters.won == 2
        assert await group.publish(b"3") == 0
        assert count(group.master()) == 3
        await direct.close()
        await late.close()


async def test_a_master_without_another_one_in_sync_just_stops(tmp_path: Path) -> None:
    """So does one that reaches no controller."""
    async with cluster(tmp_path, 2) as group:
        first = group.master()
        other = next(app for app in group.brokers.values() if app is not first)
        await group.controller.stop()
        await until(lambda: not first._member.manager.controllers.reachable)
        await first.stop()
        assert other._member.manager.steps.view.address == f"127.0.0.1:{first.port}"
        assert first._member.gate.master_address == ""


async def test_a_set_that_is_committed_while_the_log_opens_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not sent again, and with the former one every change would be refused."""
    open_store, start_manager, managers = MemberLog.open, ReplicasManager.start, []

    def started(self: ReplicasManager) -> None:
        managers.append(self)
        start_manager(self)

    async def interrupted(self: MemberLog, role: str, epoch: int | None = None) -> LogStore:
        store = await open_store(self, role, epoch)
        view = managers[0].steps.view if managers else None
        if role == "writer" and view is not None:
            managers[0]._apply_view(replace(view, set_epoch=view.set_epoch + 5))
        return store

    monkeypatch.setattr(ReplicasManager, "start", started)
    monkeypatch.setattr(MemberLog, "open", interrupted)
    async with cluster(tmp_path, 1) as group:
        member = group.master()._member
        assert member.master.leader.members.set_epoch == member.manager.steps.view.set_epoch > 5


async def test_with_too_few_in_sync_messages_are_refused_with_a_reason(tmp_path: Path) -> None:
    """One of two: refused as busy, unready with the reason; with the second one back it continues."""
    async with cluster(tmp_path, 2, in_sync_min=2) as group:
        assert await group.publish(b"1") == 0
        master = group.master()
        assert master.ready(), master.unready_reason()
        number = next(number for number, app in group.brokers.items() if app is not master)
        await group.brokers[number].stop()
        await until(lambda: not master.ready())
        assert master.unready_reason() == "1 of the brokers in sync can be reached, messages need 2"
        assert await group.publish(b"2") == 2
        assert master.registry.values()["rocketmq_replica_in_sync_refusals_total"] == 1
        await group.add(number)
        await until(master.ready)
        assert await group.publish(b"2") == 0


async def test_a_lone_master_serves_without_a_controller(tmp_path: Path) -> None:
    """And one that restarts then waits, fenced, until there is one."""
    async with cluster(tmp_path, 1) as group:
        controllers, port = group.controller, group.controller.port
        assert await group.publish(b"0") == 0
        await controllers.stop()
        assert await group.publish(b"1") == 0
        await group.brokers[1].stop()
        app = await group.add(1)
        assert not app.ready()
        assert app.unready_reason() == "no role yet: looking for the leading controller"
        direct = await connect("127.0.0.1", app.port)
        assert (await direct.request(Command(RequestCode.MULTI_PULL))).code == 9101
        refused = await direct.request(Command(RequestCode.ELECTION))
        assert refused.code != 0
        assert refused.remark.endswith("replication.mode must be the same on all members")
        await direct.close()
        await group.start_controller(port)
        assert await group.publish(b"2") == 0
        assert count(app) >= 3
        assert len(app._member.store.replica.epochs) == 2


async def test_a_store_of_a_lone_broker_becomes_the_first_replica(tmp_path: Path) -> None:
    """One data directory from the laptop to the cluster."""
    group = Cluster(tmp_path)
    try:
        await group.start_controller()
        alone = BrokerApp(
            BrokerConfig(data_directory=tmp_path / "broker-1", port=0, controllers=group.controllers, store=STORE)
        )
        await alone.start()
        await group.connect()
        assert await group.publish(b"1", b"2") == 0
        await alone.stop()
        first = await group.add(1)
        await until(lambda: group.master() is first)
        second = await group.add(2)
        await group.settle(1, 2)
        assert await group.publish(b"3") == 0
        await until(lambda: count(second) == 3)
        answer = await (direct := await connect("127.0.0.1", second.port)).request(
            Command(RequestCode.GET_BROKER_EPOCH_CACHE)
        )
        cache = decode_body(answer.body, EpochCache)
        assert (cache.broker_id, len(cache.epoch_list), cache.max_offset) == (2, 2, second._member.store.end_position)
        await direct.close()
    finally:
        await group.stop()


async def test_a_learner_has_the_log_and_no_vote(tmp_path: Path) -> None:
    """It is never in sync, however much it has."""
    async with cluster(tmp_path, 1) as group:
        learner = await group.add(2, learner=True)
        assert await group.publish(b"1") == 0
        await until(lambda: count(learner) == 1)
        assert group.master()._member.master.leader.members.committed == {1}
        picture = group.master().status()["member"]
        assert [(each["id"], each["learner"]) for each in picture["replicas"]] == [(2, True)]


@pytest.mark.parametrize(("listen", "controllers"), [(False, ("c:1",)), (True, ())])
def test_a_member_needs_a_port_and_controllers(tmp_path: Path, listen: bool, controllers: tuple[str, ...]) -> None:
    """In one process with others, or alone, it could not replicate."""
    config = BrokerConfig(data_directory=tmp_path, controllers=controllers, replication=ReplicationConfig(enabled=True))
    with pytest.raises(LocalMisuse, match="a process of its own"):
        BrokerApp(config, listen=listen)


async def test_access_keys_are_pairs(tmp_path: Path) -> None:
    """As everywhere; the secret is not shown."""
    config = BrokerConfig(
        data_directory=tmp_path, controllers=("c:1",), access_keys=("key",),
        replication=ReplicationConfig(enabled=True),
    )  # fmt: skip
    with pytest.raises(LocalMisuse):
        BrokerApp(config)


def flip_bit(directory: Path, body: bytes) -> None:
    """Change one bit of a message in its log file."""
    for path in (directory / "log").iterdir():
        at = path.read_bytes().find(body)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([body[0] ^ 1]))
            return
    pytest.fail(f"no log file holds {body!r}")


async def test_a_damaged_replica_copies_the_masters_bytes_again(tmp_path: Path) -> None:
    """Found by its own pass over the log; it leaves the set first, and is in sync again with an equal log."""
    async with cluster(tmp_path, 3, in_sync_min=2) as group:
        assert await group.publish(*[b"message %d" % number for number in range(50)]) == 0
        master = group.master()
        number = next(number for number, app in group.brokers.items() if app is not master)
        await until(lambda: count(group.brokers[number]) == 50)
        await group.brokers[number].stop()
        flip_bit(tmp_path / f"broker-{number}", b"message 7")
        again = await group.add(number)
        await until(lambda: again.registry.values()["rocketmq_replica_damaged_bytes_total"] > 0)
        changes = master._member.master.in_sync.changes
        assert changes >= 1
        assert again.registry.values()["rocketmq_replica_cut_bytes_total"] == 0, "nothing that was confirmed is lost"
        await group.settle(*group.brokers)
        assert await group.publish(b"more") == 0
        await until(lambda: count(again) == 51)
        assert not again._member.store.quarantined
        assert again._member.manager.steps.is_registered
    assert log_bytes(tmp_path / "broker-1") == log_bytes(tmp_path / "broker-2") == log_bytes(tmp_path / "broker-3")


async def test_a_damaged_master_lets_another_one_lead(tmp_path: Path) -> None:
    """A reader found the damage: a member in sync is elected, and the former master copies its bytes."""
    async with cluster(tmp_path, 2, in_sync_min=1) as group:
        assert await group.publish(*[b"message %d" % number for number in range(50)]) == 0
        first = group.master()
        number = next(number for number, app in group.brokers.items() if app is first)
        store = first._member.store
        flip_bit(tmp_path / f"broker-{number}", b"message 7")
        queue = store.queues.find(names.light_queue_name(b"plant/1"))
        with pytest.raises(UnreadableOffsets):
            store.reading.read(queue, 7, 1, 1 << 20)
        await until(lambda: group.master() not in (None, first))
        assert group.master()._member.master.leader.epoch > 1
        assert await group.publish(b"more") == 0
        await group.settle(*group.brokers)
        await until(lambda: count(first) >= 51)
        assert first.registry.values()["rocketmq_replica_damaged_bytes_total"] > 0
        assert not first._member.store.quarantined
    assert log_bytes(tmp_path / "broker-1") == log_bytes(tmp_path / "broker-2")
