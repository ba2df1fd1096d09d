"""A replica whose log has rotted is elected: it answers nobody, and another one that has everything leads.

What rots is the last record, which the replica does not know to be confirmed, so it finds the damage when it opens its
log as the master. Nothing but that record says there that its offset of the queue is taken.
"""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.controller_body import SyncStateData, decode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from tests.chaos.fault_proxy import FaultProxy
from tests.processes.broker_group import DEADLINE_S, Broker, BrokerGroup, until
from tests.processes.kill_rounds import published
from tests.processes.rig import no_traceback
from tests.processes.test_bad_disk import records

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TOPIC = "orders"
SETTINGS = (
    "replication.stream_heartbeat_ms=20000",
    "replication.stream_silence_limit_ms=60000",
    "maintain_interval_ms=100",
)
"""A replica learns with the next message how much is confirmed, or after the first of these times."""
WORDS = [word for setting in SETTINGS for word in ("--set", f"broker.{setting}")]
HELD = 100
"""The number of the message that the rotten master does not take."""


def send(broker: Broker, number: int) -> Command:
    """The answer to one message for the only queue."""
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0"}
    command = Command(Code.SEND_MESSAGE_V2, fields=fields, body=b"%d" % number)
    with BlockingConnection.dial(f"127.0.0.1:{broker.port}") as connection:
        return connection.request(command)


class Account:
    """What was acknowledged, by offset."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def sent(self, broker: Broker, number: int) -> bool:
        """Send it once; whether it is acknowledged."""
        reply = send(broker, number)
        if reply.code == 0:
            offset = int(reply.fields["queueOffset"])
            assert offset not in self.numbers, "an offset is given twice"
            self.numbers[offset] = number
        return reply.code == 0

    def send(self, group: BrokerGroup, first: int, count: int) -> None:
        """Messages one after the other, to whoever is the master."""

        def is_taken(number: int) -> bool:
            try:
                master = group.master()
                return master is not None and self.sent(master, number)
            except (LightMQError, OSError):
                return False

        for number in range(first, first + count):
            until(lambda number=number: is_taken(number), "nobody takes messages")  # type: ignore[misc]

    def check(self, master: Broker) -> list[int]:
        """All of it is there, under its offset; returns what consumers get."""
        with BlockingConnection.dial(f"127.0.0.1:{master.port}") as connection:
            stored = published(connection, TOPIC)
        assert {offset: stored[offset] for offset in self.numbers} == self.numbers
        return stored


def filled(group: BrokerGroup) -> Account:
    """Start it, and send the first 31 messages."""
    for part in (*group.controllers, *group.brokers):
        part.start()
    group.settle()
    account = Account()
    account.send(group, 0, 31)
    return account


def counted(broker: Broker, name: str) -> int:
    found = re.search(rb"^%b (\d+)" % name.encode(), broker.page("/metrics"), re.MULTILINE)
    assert found
    return int(found[1])


def flip_a_bit(broker: Broker, data: Path) -> None:
    """In the body of the last record of its log, once its search for damage has ended for a day."""
    until(lambda: counted(broker, "rocketmq_scrub_completed_timestamp_seconds"), "it still looks for damage")
    log = max(path for path in (data / "log").iterdir() if path.name.isdigit())
    place, size = records(log)[-1]
    with log.open("r+b") as stream:
        stream.seek(place + size - 8)
        byte = stream.read(1)[0]
        stream.seek(place + size - 8)
        stream.write(bytes([byte ^ 0x10]))


def alive(group: BrokerGroup) -> set[int]:
    """Ids of the brokers in sync that the controllers believe to be alive."""
    with BlockingConnection.dial(f"127.0.0.1:{group.controllers[0].port}") as connection:
        reply = connection.request(Command(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a"]'))
    (state,) = decode_body(reply.body, SyncStateData).replicas_info_table.values()
    return {each.broker_id for each in state.in_sync_replicas if each.alive}


def withholds(rotten: Broker) -> bool:
    """Whether it leads and says that its damage keeps it from serving."""
    try:
        rotten.page("/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return b"opened with damage" in error.read()
    except OSError:
        return False
    return False


def check_passed_on(waiting: Future[Command]) -> None:
    """What was sent to the rotten master waited until there was another one, and was not begun."""
    reply = waiting.result(DEADLINE_S)
    assert (reply.code, "not the master" in (reply.remark or "")) == (ResponseCode.SERVICE_NOT_AVAILABLE, True), reply


def check_whole(group: BrokerGroup, account: Account, count: int = 61) -> None:
    """All brokers are in sync again, with the same bytes, and with all that was acknowledged: so many messages."""
    master = group.settle()
    account.send(group, 51, 10)
    group.wait_equal()
    assert HELD not in account.check(master)
    assert len(account.numbers) == count
    assert len(set(group.logs())) == 1
    no_traceback(*group.brokers, *group.controllers)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_no_offset_is_given_twice(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """The broker that is sound is cut off from the controllers, and so cannot be elected at first."""
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2, arguments={"broker": WORDS})
    master, rotten, sound = group.brokers
    network = FaultProxy()
    try:
        group.controllers[0].start()
        port = network.add("controllers", ("127.0.0.1", 0), ("127.0.0.1", group.controllers[0].port))[1]
        sound.arguments[sound.arguments.index(group.addresses)] = f"127.0.0.1:{port}"
        master.start()
        until(lambda: group.master() is master, "it does not become the master")
        rotten.start()
        sound.start()
        group.settle()
        account = Account()
        account.send(group, 0, 30)
        id_of_sound = sound.status()["id"]
        network.set("controllers", refuses=True)
        network.reset("controllers")
        until(lambda: id_of_sound not in alive(group), "the controllers do not notice that it is gone")
        account.send(group, 30, 1)
        flip_a_bit(rotten, tmp_path / f"{rotten.data.name}-data")
        master.kill()

        until(lambda: withholds(rotten), "it is not elected")
        waiting = threads.submit(send, rotten, HELD)
        network.set("controllers")
        until(lambda: group.master() is sound, "no other broker becomes the master")
        check_passed_on(waiting)
        account.send(group, 31, 20)
        assert counted(rotten, "rocketmq_replica_damaged_bytes_total") > 0
        master.start()
        check_whole(group, account)
    finally:
        group.end()
        network.close()


def test_no_offset_is_given_twice_where_members_elect(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    """The broker that is sound waits for longer before it stands for election, and votes for the other one.

    That one has forgotten what it promised and votes no more, so the group waits for the one that was killed.
    """
    group = BrokerGroup(tmp_path, brokers=3, mode="dledger", arguments={"broker": WORDS})
    master, rotten, sound = group.brokers
    for broker, interval_ms in ((master, 20), (rotten, 150), (sound, 3_000)):
        broker.arguments += ["--set", f"broker.replication.election_interval_ms={interval_ms}"]
    try:
        account = filled(group)
        assert group.master() is master
        group.wait_equal()
        flip_a_bit(rotten, tmp_path / f"{rotten.data.name}-data")
        master.kill()

        until(lambda: withholds(rotten), "it is not elected")
        waiting = threads.submit(send, rotten, HELD)
        master.start()
        check_passed_on(waiting)
        account.send(group, 31, 20)
        assert group.settle() is not rotten
        assert counted(rotten, "rocketmq_replica_damaged_bytes_total") > 0
        check_whole(group, account)
    finally:
        group.end()


def test_a_rotten_master_that_is_alone_gives_no_offset_twice(tmp_path: Path) -> None:
    """It serves without the message that it lost; the broker that comes back has it, takes what follows, and leads."""
    group = BrokerGroup(tmp_path, brokers=2, in_sync_min=1, arguments={"broker": WORDS})
    master, rotten = group.brokers
    try:
        account = filled(group)
        assert group.master() is master
        flip_a_bit(rotten, tmp_path / f"{rotten.data.name}-data")
        master.kill()

        until(lambda: group.master() is rotten, "it does not serve")
        account.send(group, 31, 20)
        master.start()
        until(lambda: group.master() is master, "the broker that has everything does not lead")
        check_whole(group, account)
    finally:
        group.end()
