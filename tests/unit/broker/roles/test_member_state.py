"""What a member shows of itself in each role."""

from __future__ import annotations

from pathlib import Path

from broker.roles import member_state
from remoting.protocol.bodies.controller_body import EpochCache, HaReplica, HaState, decode_body
from tests.unit.broker.roles.cluster import Cluster, cluster, until


async def test_master_and_replica_show_their_roles_and_the_lag(tmp_path: Path) -> None:
    """In metrics, picture and readiness."""
    async with cluster(tmp_path, 2) as group:
        assert await group.publish(b"1") == 0
        master = group.master()
        replica = next(app for app in group.brokers.values() if app is not master)
        await until(lambda: member_state.lag_bytes(replica._member) == 0 and replica.ready())
        await until(lambda: member_state.lag_bytes(master._member) == 0)
        values, other = master.registry.values(), replica.registry.values()
        assert [values[f"rocketmq_replica_role{{{name}}}"] for name in ("master", "replica", "fenced")] == [1, 0, 0]
        assert [other[f"rocketmq_replica_role{{{name}}}"] for name in ("master", "replica", "fenced")] == [0, 1, 0]
        assert (values["rocketmq_replica_in_sync"], other["rocketmq_replica_in_sync"]) == (2, 0)
        assert values["rocketmq_replica_lag_seconds"] == other["rocketmq_replica_lag_bytes"] == 0
        assert values["rocketmq_replica_epoch"] == other["rocketmq_replica_epoch"]
        picture = member_state.picture(master._member)
        assert (picture["role"], picture["in_sync"], len(picture["replicas"])) == ("master", [1, 2], 1)
        assert member_state.picture(replica._member)["follows"].endswith(str(master._member.replication_port))
        cache = decode_body(member_state.epoch_cache(replica._member), EpochCache)
        assert [(each.start_offset, each.end_offset) for each in cache.epoch_list] == [
            (0, replica._member.store.end_position)
        ]
        end = master._member.store.end_position
        leading = decode_body(member_state.high_availability(master._member), HaState)
        assert (leading.master, leading.master_commit_log_max_offset, leading.in_sync_slave_nums) == (True, end, 1)
        assert leading.ha_connection_info == [HaReplica("broker 2", end, 0, True)]
        following = decode_body(member_state.high_availability(replica._member), HaState)
        assert not following.master
        assert following.ha_client_runtime_info.master_addr == member_state.picture(replica._member)["follows"]


async def test_a_member_without_a_role_says_what_it_waits_for(tmp_path: Path) -> None:
    """And a stopped one says that its log is not open."""
    group = Cluster(tmp_path)
    group.controllers = ("127.0.0.1:1",)
    app = await group.add(1)
    assert app.readiness() == {"store": True, "role": False}
    assert app.unready_reason() == "no role yet: looking for the leading controller"
    assert app.status()["member"]["role"] == "fenced"
    assert decode_body(member_state.epoch_cache(app._member), EpochCache).epoch_list == []
    assert decode_body(member_state.high_availability(app._member), HaState).ha_connection_info == []
    await app.stop()
    assert app.unready_reason() == "the log is not open"
    assert app.readiness()["store"] is False
    assert member_state.lag_bytes(app._member) == member_state.lag_ms(app._member) == 0
