"""A master in one epoch: the set changes as the controllers decide, messages are refused with too few in sync."""

from __future__ import annotations

import asyncio
from pathlib import Path

from broker.config import BrokerConfig, ReplicationConfig
from broker.replication.ha_server import HaServer
from broker.roles.master import MasterOfGroup
from broker.roles.steps import ControllerAnswer, KnownGroup, PauseWatch
from broker.store.recovery.log_end import DamagedRange
from remoting.protocol.frames.codes import ResponseCode
from remoting.transport.failures import ConnectionLost
from runtime.clock import SystemClock
from tests.unit.broker.replication.streams import LOG, Replica, fill, open_store, until

NOT_ALIVE = ControllerAnswer(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark="not alive")


class Group:
    """A master of epoch 3 whose controllers are a function."""

    def __init__(self, directory: Path, members: set[int], **replication) -> None:
        options = {"in_sync_min": 1, "check_interval_ms": 50, "absence_limit_ms": 50, "stream_heartbeat_ms": 50}
        config = BrokerConfig(
            cluster_name="C", broker_name="g", replication=ReplicationConfig(**(options | replication))
        )
        self.store = open_store(directory, "writer", 3)
        self.server = HaServer(SystemClock(), LOG, keys={}, open_to_all=False, superseded=lambda _epoch: None)
        self.asked: list[frozenset[int]] = []
        self.outcomes: list[Exception | ControllerAnswer] = []
        self.asked_again = 0
        self.stays: list[int] = []
        """Where the log ended when clients were to be served with damage."""
        self.set_epoch = 1
        self.master = MasterOfGroup(
            config, 1, KnownGroup(3, 1, members=frozenset(members), set_epoch=1), self.store, self.server.streams,
            self, LOG, pauses=PauseWatch(1_000, self.server.streams.now_ms, lambda _paused_ms: None),
            doubt=lambda: None, stay=lambda: self.stays.append(self.store.end_position),
        )  # fmt: skip

    async def group_size(self) -> int:
        return 3

    def majority(self, _epoch: int) -> None:
        return

    def ask_again(self) -> None:
        self.asked_again += 1

    def lost_something(self) -> None:
        raise AssertionError("no log is damaged")

    async def alter(self, epoch: int, members: frozenset[int], set_epoch: int) -> ControllerAnswer:
        self.asked.append(members)
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, ControllerAnswer):
                return outcome
            raise outcome
        assert (epoch, set_epoch) == (3, self.set_epoch)
        self.set_epoch += 1
        return ControllerAnswer(0, KnownGroup(3, 1, members=members, set_epoch=self.set_epoch))

    async def start(self) -> str:
        await self.server.start("127.0.0.1", 0)
        self.master.begin(None)
        return f"127.0.0.1:{self.server.port}"

    async def stop(self) -> None:
        self.master.end()
        await self.master.rest()
        await self.server.stop()
        self.store.close()


async def test_replicas_join_and_leave_the_set(tmp_path: Path) -> None:
    """As soon as they have caught up; a while after their connection ended."""
    group = Group(tmp_path / "1", {1})
    address = await group.start()
    fill(group.store, b"q", 3)
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: group.master.leader.members.committed == {1, 2})
    await replica.stop()
    await until(lambda: group.master.leader.members.committed == {1})
    assert group.asked == [{1, 2}, {1}]
    assert group.master.in_sync.changes == 2
    await group.stop()


async def test_a_replica_whose_broker_stops_leaves_the_set_at_once(tmp_path: Path) -> None:
    """Long before a lost one would, and long before the next regular check."""
    group = Group(tmp_path / "1", {1, 2}, check_interval_ms=600_000, absence_limit_ms=600_000)
    address = await group.start()
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: replica.client.following.connected)
    await replica.client.stop(good_bye=True)
    await until(lambda: group.master.leader.members.committed == {1})
    await replica.stop()
    await group.stop()


async def test_a_lost_replica_is_missed_as_soon_as_it_counts_as_absent(tmp_path: Path) -> None:
    """Not at the next regular check."""
    group = Group(tmp_path / "1", {1, 2}, check_interval_ms=600_000, absence_limit_ms=300)
    address = await group.start()
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: replica.client.following.connected)
    await replica.stop()
    await until(lambda: group.master.leader.members.committed == {1})
    await group.stop()


async def test_a_refusal_and_no_answer_are_distinguished(tmp_path: Path) -> None:
    """Refused: asked again. Unanswered: both stay required until a set is learnt."""
    group = Group(tmp_path / "1", {1})
    group.outcomes = [NOT_ALIVE, ConnectionLost("nobody there")]
    address = await group.start()
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: group.master.leader.members.committed == {1, 2})
    assert group.asked == [{1, 2}] * 3
    assert group.asked_again == 1, "who refuses may know of another master"
    await replica.stop()
    await group.stop()


async def test_a_busy_controller_has_not_refused(tmp_path: Path) -> None:
    """Its request may still be committed: until a set is learnt its members stay required."""
    group = Group(tmp_path / "1", {1})
    group.outcomes = [ControllerAnswer(2, remark="the controllers did not agree in time"), *[NOT_ALIVE] * 1_000]
    address = await group.start()
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: len(group.asked) >= 3)
    await replica.stop()
    await until(lambda: not group.master.leader.replicas())
    assert group.master.leader.members.committed == {1}
    assert group.master.leader.members.doubtful == {2}
    await group.stop()


async def test_with_too_few_in_sync_messages_are_refused(tmp_path: Path) -> None:
    """And accepted again with enough; what the controllers say of another epoch does not count."""
    group = Group(tmp_path / "1", {1, 2}, in_sync_min=2)
    address = await group.start()
    await until(lambda: group.master.admission.refusal() is not None)
    refused = group.master.admission.refusal()
    assert refused is not None
    assert (refused.code, refused.remark) == (2, "1 of the brokers in sync can be reached, messages need 2")
    assert group.master.admission.refused >= 2
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: group.master.admission.refusal() is None)
    group.master.learn(KnownGroup(4, 1, members=frozenset({1}), set_epoch=9))
    assert group.master.leader.members.committed == {1, 2}
    await replica.stop()
    await group.stop()


async def test_count_mode_names_what_it_needs(tmp_path: Path) -> None:
    """It has a number of its own."""
    group = Group(tmp_path / "1", {1}, acknowledge="count", in_sync_replicas=3)
    await group.start()
    assert group.master.admission.short_reason() == "1 of the brokers in sync can be reached, messages need 3"
    await asyncio.sleep(0)
    await group.stop()


async def test_what_waits_for_the_replicas_is_bounded(tmp_path: Path) -> None:
    """A member that accepts nothing and cannot leave: messages are refused before they are stored, then accepted."""
    group = Group(tmp_path / "1", {1, 2}, unconfirmed_bytes_max=65_536, absence_limit_ms=60_000)
    address = await group.start()
    count = 0
    while group.master.admission.refusal() is None:
        count += 20
        fill(group.store, b"q", 20)
        assert count < 10_000
    refused = group.master.admission.refusal()
    assert refused is not None
    assert (refused.code, group.store.confirm_position) == (2, 0)
    assert "bytes wait for the replicas" in refused.remark
    assert (group.master.admission.refused_full, group.master.admission.refused) == (2, 0)
    replica = Replica(tmp_path / "2", 2, address, 3)
    await until(lambda: group.store.confirm_position == group.store.end_position)
    assert group.master.admission.refusal() is None
    await replica.stop()
    await group.stop()


async def test_a_log_opened_with_damage_is_not_served_while_another_broker_is_in_sync(tmp_path: Path) -> None:
    """What the damaged part told of is known there, and the log says nothing else of it before that one is gone."""
    store = open_store(tmp_path / "1", "writer", 2)
    end = fill(store, b"q", 20)
    await until(lambda: store.positions.kept == end)
    store.close()
    (file,) = (path for path in (tmp_path / "1" / "log").iterdir() if path.name.isdigit())
    data = bytearray(file.read_bytes())
    data[end // 2] ^= 1
    file.write_bytes(data)
    group = Group(tmp_path / "1", {1, 2}, absence_limit_ms=300)
    assert group.store.quarantined
    await group.start()
    assert (group.master.term.yields, group.stays, group.store.end_position) == (True, [], end)
    (known,) = group.store.quarantined
    group.store._parts.damage.scrubbed(DamagedRange(0, 8, "found later"))
    await until(lambda: group.stays)
    assert group.master.leader.members.committed == {1}
    assert group.stays == [group.store.end_position] > [end], "what the damage took is said before anybody is served"
    await until(lambda: any(each.settled for each in group.store.quarantined))
    assert [(each.start, each.settled) for each in group.store.quarantined] == [(0, False), (known.start, True)]
    await group.stop()
