"""One gRPC proxy in front of two broker groups: everything over both, and one group fails while the other serves."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpc_proxy.stubs import definition as d
from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from tests.processes.broker_group import Broker, Controller, until
from tests.processes.grpc_calls import GrpcCalls, Judge, client, message
from tests.processes.rig import Server, no_traceback
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
Type = d.MessageType
GROUPS = ("group-a", "group-b")
QUEUES = 2
ENDPOINTS = {"scheme": d.AddressScheme.IPv4, "addresses": [{"host": "127.0.0.1", "port": 8081}]}
COUNT = 400


class TwoGroups:
    """A controller, a group of one broker, a group of two with one log, and a proxy for both."""

    def __init__(self, folder: Path) -> None:
        self.controller = Controller(folder, 1, free_port(), "")
        self.single = self._broker(folder, "group-a", 0)
        self.pair = [self._broker(folder, "group-b", number) for number in (1, 2)]
        self.proxy = Server(folder / "proxy")

    def _broker(self, folder: Path, name: str, member: int) -> Broker:
        address = f"127.0.0.1:{self.controller.port}"
        options = [f"broker.broker_name={name}", "broker.transaction_check_after_ms=1000"]
        if member:
            options += [f"broker.replication.{each}" for each in ("enabled=true", "port=0", "in_sync_min=1")]
        arguments = ["broker", "--data", str(folder / f"{name}-{member}-data"), "--controllers", address]
        for option in options:
            arguments += ["--set", option]
        return Broker(folder / f"{name}-{member}", arguments, "remoting")

    def start(self) -> None:
        for each in (self.controller, self.single, *self.pair):
            each.start()
        until(lambda: any(len(each.status().get("in_sync", ())) == 2 for each in self.pair), "the pair is not in sync")
        self.make_topic("orders")
        self.make_topic("agents", attributes="+message.type=LITE")
        self.make_group({"groupName": "orderly", "consumeMessageOrderly": True})
        self.make_group({"groupName": "workers", "attributes": {"+lite.bind.topic": "agents"}})
        self.ports = self.proxy.launch(
            "grpc-proxy", "--grpc-port", "0", "--admin-port", "0", "--controllers",
            f"127.0.0.1:{self.controller.port}", "--set", "grpc.invisible_ms_min=1000",
        )  # fmt: skip

    def make_topic(self, name: str, **more: str) -> None:
        """At both groups."""
        self._everywhere(RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic_fields(name, QUEUES), **more}, b"")

    def make_group(self, body: dict[str, Any]) -> None:
        """At both groups."""
        self._everywhere(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(body).encode())

    def _everywhere(self, code: int, fields: dict[str, str], body: bytes) -> None:
        for broker in (self.single, self.master()):
            with BlockingConnection.dial(f"127.0.0.1:{broker.port}", 30_000) as connection:
                checked(connection.request(Command(code, fields=dict(fields), body=body)))

    def master(self) -> Broker:
        """Of the pair."""
        found: list[Broker] = []

        def is_there() -> bool:
            found[:] = [each for each in self.pair if each.running and each.status().get("role") == "master"]
            return len(found) == 1

        until(is_there, "the pair has no master")
        return found[0]

    def end(self) -> None:
        for each in (self.proxy, self.single, *self.pair, self.controller):
            each.kill_if_running()


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGroups]:
    made = TwoGroups(tmp_path_factory.mktemp("groups"))
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def calls(groups: TwoGroups) -> Iterator[GrpcCalls]:
    with GrpcCalls(groups.ports["grpc"]) as made:
        yield made


@pytest.fixture
def topic(groups: TwoGroups, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = f"t-{hash(request.node.name) % 10**9}"
    groups.make_topic(name)
    return name


def owner(one: Any) -> str:
    """The broker group that a receipt handle names."""
    return str(one.system_properties.receipt_handle.split(" ")[5])


def test_routes_and_assignments_list_both_groups(calls: GrpcCalls, topic: str) -> None:
    asked = {"topic": {"name": topic}, "endpoints": ENDPOINTS}
    queues = calls.call("QueryRoute", asked).message_queues
    each = [(name, index) for name in GROUPS for index in range(QUEUES)]
    assert [(one.broker.name, one.id) for one in queues] == each
    assert {one.broker.endpoints.addresses[0].port for one in queues} == {8081}, "all are reached through the proxy"
    for group, expected in (("any", [(name, -1) for name in GROUPS]), ("orderly", each)):
        found = calls.call("QueryAssignment", {**asked, "group": {"name": group}}).assignments
        assert [(one.message_queue.broker.name, one.message_queue.id) for one in found] == expected


def test_messages_go_to_both_and_come_from_both(calls: GrpcCalls, topic: str) -> None:
    for number in range(8):
        calls.send(message(f"{number}", topic))
    came = calls.take(topic, "fair", 8)
    assert sorted(one.body for one in came) == [b"%d" % number for number in range(8)]
    assert Counter(map(owner, came)) == dict.fromkeys(GROUPS, 4)
    assert calls.receive(topic, "fair", wait_s=0) == []
    again = calls.acknowledge(topic, "fair", came)
    assert set(again) == {"INVALID_RECEIPT_HANDLE"}, "each group knows that its own are done"


def test_a_waiting_receive_gets_a_message_of_either_group(calls: GrpcCalls, topic: str) -> None:
    """Whichever it asked for, long before its time is over."""
    found = []
    for number in range(4):
        later = threading.Timer(0.7, calls.send, [message(f"{number}", topic)])
        later.start()
        begun = time.monotonic()
        (one,) = calls.take(topic, "waiting", 1, wait_s=15, message_queue={"broker": {"name": GROUPS[0]}})
        found.append(owner(one))
        assert (one.body, time.monotonic() - begun < 10) == (b"%d" % number, True)
        later.join()
    assert set(found) == set(GROUPS)


def test_a_handle_of_the_other_group_or_of_none_is_refused(calls: GrpcCalls, topic: str) -> None:
    calls.send(message("mine", topic))
    (one,) = calls.receive(topic, "thieves", wait_s=10)
    real = one.system_properties.receipt_handle
    mine, other = owner(one), next(name for name in GROUPS if name != owner(one))
    for forged in (real.replace(mine, other), real.replace(mine, "group-c")):
        one.system_properties.receipt_handle = forged
        assert calls.acknowledge(topic, "thieves", [one]) == ["INVALID_RECEIPT_HANDLE"]
        parts = {"group": {"name": "thieves"}, "topic": {"name": topic}, "receipt_handle": forged, "message_id": "m"}
        change = {**parts, "invisible_duration": {"seconds": 9}}
        assert calls.code("ChangeInvisibleDuration", change) == "INVALID_RECEIPT_HANDLE"
        assert calls.code("ForwardMessageToDeadLetterQueue", parts) == "INVALID_RECEIPT_HANDLE"
    one.system_properties.receipt_handle = real
    assert calls.acknowledge(topic, "thieves", [one]) == ["OK"]


def test_message_groups_stay_in_order_over_both(calls: GrpcCalls, topic: str) -> None:
    names = [f"g{number}" for number in range(8)]
    for number in range(5):
        sent = (message(f"{name} {number}", topic, message_group=name, message_type=Type.FIFO) for name in names)
        calls.send(*sent)
    came = calls.take(topic, "in-order", 40)
    for name in names:
        of_it = [one for one in came if one.system_properties.message_group == name]
        assert [one.body.decode() for one in of_it] == [f"{name} {number}" for number in range(5)]
        assert len({(owner(one), one.system_properties.queue_id) for one in of_it}) == 1
    assert set(map(owner, came)) == set(GROUPS)


def test_delayed_messages_are_recalled_and_transactions_decided_where_they_are(calls: GrpcCalls, topic: str) -> None:
    due = {"seconds": int(time.time()) + 3_600}
    for number in range(4):
        (entry,) = calls.send(message(f"late {number}", topic, message_type=Type.DELAY, delivery_timestamp=due))
        request = {"topic": {"name": topic}, "recall_handle": entry.recall_handle}
        assert calls.code("RecallMessage", request) == "OK"
    named: Counter[str] = Counter()
    for number in range(4):
        (entry,) = calls.send(message(f"half {number}", topic, message_type=Type.TRANSACTION))
        place, _, broker = entry.transaction_id.partition("-group")
        named[f"group{broker}"] += 1
        decision = {"topic": {"name": topic}, "message_id": entry.message_id, "transaction_id": entry.transaction_id}
        commit = {**decision, "resolution": d.TransactionResolution.COMMIT}
        assert calls.code("EndTransaction", {**commit, "transaction_id": f"{place}-c"}) == "INVALID_TRANSACTION_ID"
        assert calls.code("EndTransaction", commit) == "OK"
        rollback = {**decision, "resolution": d.TransactionResolution.ROLLBACK}
        assert calls.code("EndTransaction", rollback) == "PRECONDITION_FAILED", "it was decided otherwise"
    assert named == dict.fromkeys(GROUPS, 2)
    assert len(calls.take(topic, "decided", 4)) == 4


def test_queues_are_read_by_offset_at_the_group_that_has_them(calls: GrpcCalls, topic: str) -> None:
    for number in range(32):
        calls.send(message(f"{number}", topic))
    found: list[bytes] = []
    group = {"name": "pulling"}
    for name in GROUPS:
        for index in range(QUEUES):
            queue = {"topic": {"name": topic}, "id": index, "broker": {"name": name}}
            end = calls.call("QueryOffset", {"message_queue": queue, "query_offset_policy": d.QueryOffsetPolicy.END})
            answers = calls.stream(
                "PullMessage", {"group": group, "message_queue": queue, "offset": 0, "batch_size": 32}
            )
            bodies = [one.message.body for one in answers if one.HasField("message")]
            assert (answers[-1].next_offset, len(bodies)) == (end.offset, end.offset)
            found += bodies
            assert calls.code("UpdateOffset", {"group": group, "message_queue": queue, "offset": 1}) == "OK"
            assert calls.call("GetOffset", {"group": group, "message_queue": queue}).offset == 1
    assert sorted(found) == sorted(b"%d" % number for number in range(32))
    nowhere = {"message_queue": {"topic": {"name": topic}, "id": 0, "broker": {"name": "group-c"}}}
    assert calls.code("QueryOffset", nowhere) == "BAD_REQUEST"


def test_lite_topics_have_one_home_each_and_are_read_at_all_groups(groups: TwoGroups, calls: GrpcCalls) -> None:
    names = [f"home-{number}" for number in range(8)]
    parts = {"topic": {"name": "agents"}, "group": {"name": "workers"}, "version": 1}
    wanted = {**parts, "action": d.LiteSubscriptionAction.PARTIAL_ADD, "lite_topic_set": names}
    assert calls.code("SyncLiteSubscription", wanted) == "OK"
    for number in range(3):
        for name in names:
            calls.send(message(f"{name} {number}", "agents", message_type=Type.LITE, lite_topic=name))
    came = calls.take("agents", "workers", 24)
    for name in names:
        of_it = [one for one in came if one.system_properties.lite_topic == name]
        assert [one.body.decode() for one in of_it] == [f"{name} {number}" for number in range(3)]
        assert len(set(map(owner, of_it))) == 1
    assert set(map(owner, came)) == set(GROUPS)
    gone = {**parts, "action": d.LiteSubscriptionAction.COMPLETE_REMOVE}
    assert calls.code("SyncLiteSubscription", gone) == "OK"


def test_the_python_client_is_served_by_both(groups: TwoGroups, tmp_path: Path) -> None:
    port = groups.ports["grpc"]
    assert client(tmp_path, "push", port) == ["one", "retry", "two"]
    assert client(tmp_path, "transactions", port)["asked"]


@pytest.mark.slow
def test_the_python_client_reads_lite_topics_of_both(groups: TwoGroups, tmp_path: Path) -> None:
    port = groups.ports["grpc"]
    assert client(tmp_path, "lite", port) == {"s-1": ["0", "3"], "s-2": ["2"]}
    assert client(tmp_path, "lite_push", port) == ["1", "2", "2", "3"]


def test_one_group_fails_while_the_other_serves(groups: TwoGroups, calls: GrpcCalls, topic: str) -> None:
    """Nothing acknowledged is lost or comes again; sends go on at the other group while a master is elected."""
    judge = Judge(groups.ports["grpc"], topic, COUNT)
    judge.start()
    assert judge.half.wait(60)
    killed = groups.master()
    killed.kill()
    judge.join()
    killed.start()
    assert len(judge.sent) == COUNT
    assert {b"%d" % number for number in range(COUNT)} <= judge.acknowledged | judge.unanswered
    assert set(judge.repeated) <= judge.unsure
    assert judge.slowest_send_s < 15
    until(lambda: "group-b" in {owner(one) for one in _sent_and_taken(calls, topic)}, "the new master is not used")
    no_traceback(groups.proxy)
    judge.calls.channel.close()


def _sent_and_taken(calls: GrpcCalls, topic: str) -> list[Any]:
    calls.send(message("after", topic))
    return calls.take(topic, "afterwards", 1)
