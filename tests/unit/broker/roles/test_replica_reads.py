"""What a replica serves: confirmed records of its own log, and never more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.roles.member import GroupMember
from broker.roles.replica_reads import ReplicaQueues, ReplicaSettings
from broker.store.queues import Queues
from remoting.access.rights import of_topic
from remoting.client.connection import dial
from remoting.protocol.bodies.pull_body import (
    FROM_REPLICA_FIELD,
    STATUS_NO_SUCH_QUEUE,
    STATUS_OK,
    PulledRange,
    QueueBoundsRequest,
    decode_bounds_reply,
    decode_multi_pull_reply,
    decode_range_pull_reply,
    encode_bounds_request,
    encode_multi_pull,
    encode_range_pull,
    encode_records_at,
)
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.server.authorizer import Authorizer
from tests.unit.broker.acting.test_locks import Peer
from tests.unit.broker.acting.test_pops import Behind
from tests.unit.broker.roles.cluster import Cluster, cluster, until

ROOM = 1 << 20
FROM_REPLICA = {FROM_REPLICA_FIELD: "true"}


def member(app: BrokerApp) -> GroupMember:
    found = app._member
    assert found is not None
    return found


def replica_of(made: Cluster) -> BrokerApp:
    master = made.master()
    return next(app for app in made.brokers.values() if app is not master)


async def ask(app: BrokerApp, code: int, body: bytes, fields: Mapping[str, str] = FROM_REPLICA) -> Command:
    connection = await dial(f"127.0.0.1:{app.port}")
    try:
        return await connection.request(Command(code, fields=dict(fields), body=body), 5_000)
    finally:
        await connection.close()


async def light_queue(made: Cluster) -> int:
    """The queue of the topic that `publish` writes to, as its master names it."""
    body = encode_bounds_request(QueueBoundsRequest(filter="plant/1"))
    assert made.connection is not None
    light = decode_bounds_reply(
        (await made.connection.request(Command(RequestCode.QUEUE_BOUNDS, body=body))).body
    ).light
    assert light is not None
    return light.id


async def test_proxies_learn_topics_and_groups(tmp_path: Path) -> None:
    """Those that the log has; of others a replica says nothing, and nothing at all to who did not ask a replica.

    Their clients are admitted as at the master.
    """
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = made.master(), replica_of(made)
        assert master is not None
        master.broker.topics.table.ensure("t", 3)
        master.broker.groups.groups.ensure("g")
        shown = {"clientLoopback": "true"}
        admitted = [await ask(app, RequestCode.ADMIT_CLIENT, b"", shown) for app in (master, replica)]
        assert [(each.code, each.fields["brokerName"]) for each in admitted] == [(ResponseCode.SUCCESS, "broker-a")] * 2
        end = member(master).store.end_position  # type: ignore[union-attr]
        await until(lambda: member(replica).log_state().confirm >= end)
        for code, field, known in (
            (RequestCode.GET_TOPIC_CONFIG, "topic", "t"), (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group", "g"),
        ):  # fmt: skip
            there, here = [await ask(app, code, b"", FROM_REPLICA | {field: known}) for app in (master, replica)]
            assert (here.code, here.body) == (ResponseCode.SUCCESS, there.body)
            assert (await ask(replica, code, b"", {field: known})).fields["masterAddress"]
            unknown = await ask(replica, code, b"", FROM_REPLICA | {field: "unknown"})
            assert (unknown.code, unknown.fields) == (ResponseCode.SERVICE_NOT_AVAILABLE, {})
            reads = member(replica).gate.reads
            assert reads is not None
            reads._authorizer.policy = lambda _identity, _action, resource: resource == ""
            assert (await ask(replica, code, b"", FROM_REPLICA | {field: known})).code == ResponseCode.NO_PERMISSION
            reads._authorizer.policy = lambda _identity, _action, _resource: True
        unsure = ReplicaSettings(Behind(member(replica).store), Authorizer()).handlers()  # type: ignore[arg-type]
        for code in unsure:
            with pytest.raises(Refused, match="does not know it yet"):
                unsure[code](Peer(), Command(code, fields={"topic": "t", "group": "g"}))  # type: ignore[arg-type]


async def pull(app: BrokerApp, queue: int, offset: int = 0) -> PulledRange:
    reply = await ask(app, RequestCode.RANGE_PULL, encode_range_pull(queue, offset, 1 << 40, ROOM))
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return decode_range_pull_reply(reply.body)


async def shown(app: BrokerApp, queue: int, end: int) -> PulledRange:
    """What a replica shows once it knows that everything below `end` is confirmed."""
    async with asyncio.timeout(20):
        while True:
            pulled = await pull(app, queue)
            if pulled.max_offset >= end:
                return pulled
            await asyncio.sleep(0.01)


async def test_a_replica_answers_with_the_masters_bytes(tmp_path: Path) -> None:
    """By queue and by position; everything else, and who takes it for the master, is refused; both are counted."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        await made.publish(*(b"%d" % n for n in range(20)))
        queue, replica, master = await light_queue(made), replica_of(made), made.master()
        assert master is not None
        found = await shown(replica, queue, 20)
        same = await pull(master, queue)
        assert (found.count, bytes(found.blob)) == (20, bytes(same.blob))
        position = RecordView(found.blob, 0).position
        reply = await ask(replica, RequestCode.RECORDS_AT, encode_records_at([position]))
        assert bytes(RecordView(memoryview(reply.body)).body) == b"0"
        body = encode_multi_pull([(queue, 5, 3, ROOM), (4_711, 0, 1, ROOM)])
        some, none = decode_multi_pull_reply((await ask(replica, RequestCode.MULTI_PULL, body)).body)
        assert (some.status, some.next_offset, some.max_offset) == (STATUS_OK, 8, 20)
        assert none.status == STATUS_NO_SUCH_QUEUE
        gate = member(replica).gate
        assert gate.reads is not None
        before, served = gate.refused, gate.reads.served
        for code in (RequestCode.APPEND_MANY, RequestCode.QUEUE_BOUNDS, RequestCode.STAGE):
            assert (await ask(replica, code, b"")).code == ResponseCode.NOT_MASTER
        range_of_it = encode_range_pull(queue, 0, 1, ROOM)
        assert (await ask(replica, RequestCode.RANGE_PULL, range_of_it, {})).code == ResponseCode.NOT_MASTER
        assert (gate.refused, gate.reads.served) == (before + 4, served)


async def test_what_is_not_confirmed_is_not_shown(tmp_path: Path) -> None:
    """The replica has the bytes on its disk, while another one in sync acknowledges nothing."""
    async with cluster(tmp_path, 3, stream_heartbeat_ms=50, lag_limit_ms=600_000) as made:
        await made.publish(b"first")
        queue, master = await light_queue(made), made.master()
        assert master is not None
        replica, mute = (app for app in made.brokers.values() if app is not master)
        await shown(replica, queue, 1)
        client = member(mute).client
        assert client is not None
        stream = client.following.stream
        follower = stream.follower if stream is not None else None
        assert follower is not None
        follower.flushed = lambda end: ()  # type: ignore[method-assign]
        sending = asyncio.create_task(made.publish(b"second"))
        store, here = member(master).store, member(replica).store
        assert store is not None
        assert here is not None
        await until(lambda: here.positions.kept == store.end_position > store.confirm_position)
        pulled = await pull(replica, queue)
        assert (pulled.count, pulled.max_offset) == (1, 1)
        beyond = await pull(replica, queue, 1)
        assert (beyond.count, beyond.next_offset) == (0, 1)
        assert here.confirm_position <= store.confirm_position
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_nothing_is_read_while_the_log_is_closed_or_where_it_is_switched_off(tmp_path: Path) -> None:
    """A replica that becomes the master answers with the master's table."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        await made.publish(b"first")
        queue, replica, master = await light_queue(made), replica_of(made), made.master()
        assert master is not None
        await shown(replica, queue, 1)
        await master.stop()
        await until(lambda: member(replica).gate.serving)
        reads = member(replica).gate.reads
        assert reads is not None
        wanted = Command(RequestCode.RANGE_PULL, fields=dict(FROM_REPLICA))
        assert reads.find(wanted) is None
        assert (await pull(replica, queue)).count == 1
        off = await made.add(3, replica_reads=False)
        await until(lambda: member(off).client is not None)
        reply = await ask(off, RequestCode.RANGE_PULL, encode_range_pull(queue, 0, 1, ROOM))
        assert reply.code == ResponseCode.NOT_MASTER


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (b"t\x003", "topic:t"),
        (b"%LMQ%plant%2F1", "topic:%LMQ%plant%2F1"),
        (b"\x01stage\x00sink\x001\x001\x001", ""),
        (b"\x01audit", ""),
        (None, ""),
    ],
)
def test_queues_are_titled_by_their_names(name: bytes | None, title: str) -> None:
    """As the master's table of topics names them; hidden ones, and those that do not exist, have none."""

    class Names(Queues):
        def __init__(self) -> None:
            pass

        def name(self, queue: int) -> bytes:
            if name is None:
                raise LocalMisuse(f"queue id {queue} does not exist")
            return name

    class Store:
        queues = Names()

    shown_queues = ReplicaQueues(Store())  # type: ignore[arg-type]
    wanted = of_topic(title.removeprefix("topic:")) if title else ""
    assert (shown_queues.title(7), shown_queues.hidden(7)) == (wanted, not title)
