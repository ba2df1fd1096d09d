"""What RocketMQ's consumers get from a replica: what it knows to be confirmed, and nothing that only a master knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from broker.app import BrokerApp
from remoting.client.connection import dial
from remoting.protocol.bodies.controller_body import MASTER_ADDRESS_FIELD
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost
from tests.unit.broker.rocketmq.test_pull import pulling, send
from tests.unit.broker.roles.cluster import Cluster, cluster, until
from tests.unit.broker.roles.test_replica_reads import member, replica_of

QUEUE = {"topic": "t", "queueId": "0"}
GROUP = {**QUEUE, "consumerGroup": "g"}
LONG_MS = 60_000
GIVEN = (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME)


@asynccontextmanager
async def connected(app: BrokerApp) -> AsyncIterator[Connection]:
    connection = await dial(f"127.0.0.1:{app.port}")
    try:
        yield connection
    finally:
        await connection.close()


async def ask(connection: Connection, code: int, fields: Mapping[str, str] = QUEUE, body: bytes = b"") -> Command:
    return await connection.request(Command(code, fields=dict(fields), body=body), 10_000)


async def two(made: Cluster) -> tuple[BrokerApp, BrokerApp]:
    master = made.master()
    assert master is not None
    return master, replica_of(made)


async def shown(replica: Connection, end: int) -> None:
    """The replica knows that everything below the end is confirmed."""
    async with asyncio.timeout(20):
        while (await ask(replica, RequestCode.GET_MAX_OFFSET)).fields["offset"] != str(end):
            await asyncio.sleep(0.01)


async def test_a_replica_gives_what_the_master_gives(tmp_path: Path) -> None:
    """Messages, offsets, a message by its id; the tags of a heartbeat; what only a master may answer is refused."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = await two(made)
        async with connected(master) as there, connected(replica) as here:
            for tags in ("red", "blue", "red"):
                await send(there, tags)
            await shown(here, 3)
            pulls = [await one.request(pulling("t", tags="red")) for one in (there, here)]
            messages = [[(each.queue_offset, each.body) for each in iter_stored(one.body)] for one in pulls]
            assert messages == [[(0, b"red"), (2, b"red")]] * 2
            assert pulls[1].fields["nextBeginOffset"] == "3"
            for code in GIVEN:
                assert (await ask(here, code)).fields == (await ask(there, code)).fields
            sought = {**QUEUE, "timestamp": "0"}
            assert (await ask(here, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, sought)).fields["offset"] == "0"
            first = next(iter_stored(pulls[1].body))
            assert first.store_host == ("127.0.0.1", replica.port)
            viewed = await ask(here, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(first.position)})
            assert next(iter_stored(viewed.body)).body == b"red"
            beat = json.dumps(
                {
                    "clientID": "c",
                    "consumerDataSet": [
                        {
                            "groupName": "g",
                            "subscriptionDataSet": [{"topic": "t", "subString": "blue", "subVersion": 1}],
                        }
                    ],
                }
            ).encode()
            assert (await ask(here, RequestCode.HEART_BEAT, {}, beat)).code == ResponseCode.SUCCESS
            blue = await here.request(pulling("t", sysFlag="0"))
            assert [each.body for each in iter_stored(blue.body)] == [b"blue"]
            left = {"clientID": "c", "consumerGroup": "g"}
            assert (await ask(here, RequestCode.UNREGISTER_CLIENT, left)).code == ResponseCode.SUCCESS
            unknown = await here.request(pulling("t", sysFlag="0"))
            assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            for code in (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.SEND_MESSAGE_V2, RequestCode.LOCK_BATCH_MQ):
                refused = await ask(here, code, {**GROUP, "commitOffset": "1"})
                assert (refused.code, refused.fields[MASTER_ADDRESS_FIELD]) == (
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"127.0.0.1:{master.port}",
                )


async def test_what_is_not_known_here_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """A reader stays where it is, and a group is not told to begin anew."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = await two(made)
        async with connected(master) as there, connected(replica) as here:
            await send(there, "red")
            await shown(here, 1)
            for topic, queue in (("t", 0), ("t", 99), ("nowhere", 0), ("\x01audit", 0)):
                reply = await here.request(pulling(topic, 9, queue=queue))
                assert (reply.code, reply.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "9")
            fresh = await ask(here, RequestCode.QUERY_CONSUMER_OFFSET, GROUP)
            assert fresh.code == ResponseCode.SERVICE_NOT_AVAILABLE
            committed = await ask(there, RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": "1"})
            assert committed.code == ResponseCode.SUCCESS
            async with asyncio.timeout(20):
                while (found := await ask(here, RequestCode.QUERY_CONSUMER_OFFSET, GROUP)).code != ResponseCode.SUCCESS:
                    await asyncio.sleep(0.01)
            assert found.fields["offset"] == "1"
            ignored = await here.request(pulling("t", sysFlag="5", commitOffset="0"))
            assert ignored.code == ResponseCode.SUCCESS
            assert (await ask(there, RequestCode.QUERY_CONSUMER_OFFSET, GROUP)).fields["offset"] == "1"


async def test_a_waiting_pull_is_answered_when_the_replica_knows_that_a_message_is_confirmed(tmp_path: Path) -> None:
    """And none before: the replica has the bytes on its disk while another one in sync acknowledges nothing."""
    async with cluster(tmp_path, 3, stream_heartbeat_ms=50, lag_limit_ms=600_000) as made:
        master = made.master()
        assert master is not None
        replica, mute = (app for app in made.brokers.values() if app is not master)
        async with connected(master) as there, connected(replica) as here:
            await send(there, "red")
            await shown(here, 1)
            waiting = asyncio.create_task(here.request(pulling("t", 1, wait_ms=LONG_MS), LONG_MS))
            client = member(mute).client
            assert client is not None
            stream = client.following.stream
            follower = stream.follower if stream is not None else None
            assert follower is not None
            flushed = follower.flushed
            follower.flushed = lambda end: ()  # type: ignore[method-assign]
            sending = asyncio.create_task(send(there, "blue"))
            store, own = member(master).store, member(replica).store
            assert store is not None
            assert own is not None
            await until(lambda: own.positions.kept == store.end_position > store.confirm_position)
            assert (await ask(here, RequestCode.GET_MAX_OFFSET)).fields["offset"] == "1"
            now = await here.request(pulling("t", 1))
            assert (now.code, now.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")
            assert not waiting.done()
            follower.flushed = flushed  # type: ignore[method-assign]
            await send(there, "green")
            await sending
            reply = await waiting
            assert [each.body for each in iter_stored(reply.body)][:1] == [b"blue"]


async def test_a_waiting_pull_ends_with_the_role(tmp_path: Path) -> None:
    """The replica becomes the master: the connection is closed, and a new one gets the master's answers."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = await two(made)
        async with connected(master) as there, connected(replica) as here:
            await send(there, "red")
            await shown(here, 1)
            waiting = asyncio.create_task(here.request(pulling("t", 1, wait_ms=LONG_MS), LONG_MS))
            await made.brokers[next(n for n, app in made.brokers.items() if app is master)].stop()
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], ConnectionLost)
        await until(lambda: member(replica).gate.serving)
        async with connected(replica) as here:
            beyond = await here.request(pulling("t", 9))
            assert (beyond.code, beyond.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


async def test_rights_count_as_at_the_master(tmp_path: Path) -> None:
    """Another topic, another group's offset, a heartbeat for it, and a message by its position."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = await two(made)
        async with connected(master) as there, connected(replica) as here:
            await send(there, "red", topic="u")
            await send(there, "red")
            await shown(here, 1)
            body = (await here.request(pulling("t"))).body
            position = next(iter_stored(body)).position
            reads = member(replica).gate.reads
            assert reads is not None
            mine = {"u/#", "$group/g", ""}
            reads._authorizer.policy = lambda _identity, _action, resource: resource in mine
            assert (await here.request(pulling("u"))).code == ResponseCode.SUCCESS
            other = {**GROUP, "topic": "u", "consumerGroup": "theirs"}
            theirs = b'{"clientID": "c", "consumerDataSet": [{"groupName": "theirs"}]}'
            for reply in (
                await here.request(pulling("t")),
                await ask(here, RequestCode.GET_MAX_OFFSET),
                await ask(here, RequestCode.QUERY_CONSUMER_OFFSET, other),
                await ask(here, RequestCode.HEART_BEAT, {}, theirs),
                await ask(here, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)}),
            ):
                assert reply.code == ResponseCode.NO_PERMISSION, reply


async def test_consumers_are_sent_to_the_replica_that_their_group_names(tmp_path: Path) -> None:
    """While it follows; routes show it, and the replica keeps them."""
    async with cluster(tmp_path, 2, stream_heartbeat_ms=50) as made:
        master, replica = await two(made)
        number = member(replica).manager.steps.broker_id
        groups = [{"groupName": name, "brokerId": chosen} for name, chosen in (("g", number), ("far", 99))]
        async with connected(master) as there, connected(replica) as here:
            await send(there, "red")
            for group in groups:
                body = json.dumps(group).encode()
                created = await ask(there, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
                assert created.code == ResponseCode.SUCCESS

            async def suggested(connection: Connection, group: str) -> str:
                return (await connection.request(pulling("t", consumerGroup=group))).fields["suggestWhichBrokerId"]

            assert [await suggested(there, name) for name in ("g", "far", "other")] == [str(number), "0", "0"]
            await shown(here, 1)
            async with asyncio.timeout(20):
                while await suggested(here, "g") != str(number):
                    await asyncio.sleep(0.01)
            assert made.controller is not None
            route = made.controller.name_server.topic_route("t")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {
                0: f"127.0.0.1:{master.port}",
                number: f"127.0.0.1:{replica.port}",
            }
            await replica.stop()
            async with asyncio.timeout(20):
                while await suggested(there, "g") != "0":
                    await asyncio.sleep(0.01)
