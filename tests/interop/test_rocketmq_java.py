"""RocketMQ's own Java client, `mqadmin` and brokers work with our controllers and our broker groups."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.broker_group import Broker, BrokerGroup, until
from tests.support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]

NOISE = ("|-INFO", "|-WARN", "\tat ")
FEATURES = (
    "sync", "async", "oneway", "batch", "orderly", "orderly_suspended", "delay_level", "delay_ms", "recall", "tags",
    "sql", "retry", "lite_pull", "query_key", "large", "transaction", "request_reply", "server_rebalance", "pop",
    "pop_ordered", "priority", "trace", "first_send", "asked_members",
)  # fmt: skip
"""Scenarios of ClientFeatures that a LightMQ broker must pass; the others are not supported yet."""
COMMANDS = [
    ("clusterList -n {ns}", "broker-a"),
    ("getControllerMetaData -a {controller}", "#ControllerLeaderAddress"),
    ("getSyncStateSet -a {controller} -b broker-a", "#SyncStateSetNums\t3"),
    ("getBrokerEpoch -n {ns} -b broker-a", "EpochEntry{epoch="),
    ("getControllerConfig -a {controller}", "replica_timeout_ms"),
    ("updateControllerConfig -a {controller} -k a -v 1", "CODE: 16"),
    ("getNamesrvConfig -n {ns}", "topics_max"),
    ("updateNamesrvConfig -n {ns} -k a -v 1", "CODE: 16"),
    ("updateTopic -n {ns} -c DefaultCluster -t admin -r 4 -w 4", "success"),
    ("topicList -n {ns}", "admin"),
    ("topicRoute -n {ns} -t admin", '"readQueueNums":4'),
    ("topicClusterList -n {ns} -t admin", "DefaultCluster"),
    ("updateTopicPerm -n {ns} -c DefaultCluster -t admin -p 4", "success"),
    ("updateTopicPerm -n {ns} -c DefaultCluster -t admin -p 6", "success"),
    ("updateSubGroup -n {ns} -c DefaultCluster -g readers", "success"),
    ("getConsumerConfig -n {ns} -g readers", "consumeEnable"),
    ("sendMessage -n {ns} -t admin -p body -k key-1 -c tag", "SEND_OK"),
    ("queryMsgByKey -n {ns} -t admin -k key-1", "#Message ID"),
    ("printMsg -n {ns} -t admin", "MSGID"),
    ("topicStatus -n {ns} -t admin", "broker-a"),
    ("consumerProgress -n {ns}", "readers"),
    ("brokerConsumeStats -n {ns} -b {master}", "Diff Total"),
    ("consumerProgress -n {ns} -g readers", "CODE: 206"),
    ("consumerConnection -n {ns} -g readers", "CODE: 206"),
    ("consumerStatus -n {ns} -g readers", "CODE: 206"),
    ("producer -n {ns} -b {master}", "<== ended"),
    ("producerConnection -n {ns} -g writers -t admin", "CODE: 1 "),
    ("resetOffsetByTime -n {ns} -g readers -t admin -s -1", "broker-a"),
    ("consumerProgress -n {ns} -g readers", "admin"),
    ("setConsumeMode -n {ns} -c DefaultCluster -t admin -g poppers -m POP -q 0", "success"),
    ("setConsumeMode -n {ns} -c DefaultCluster -t admin -g poppers -m BOTH -q 0", "<== ended"),
    ("statsAll -n {ns} -t admin", "readers"),
    ("haStatus -n {ns} -b {master}", "#InSyncSlaveNum\t2"),
    ("brokerStatus -n {ns} -b {master}", "commitLogMaxOffset"),
    ("getBrokerConfig -n {ns} -b {master}", "replication.in_sync_min"),
    ("updateBrokerConfig -n {ns} -b {master} -k port -v 1", "CODE: 16"),
    ("updateBrokerConfig -n {ns} -b {master} -k a -v 1", "CODE: 29"),
    ("updateBrokerConfig -n {ns} -b {master} -k limits.topics_max -v 777", "success"),
    ("getBrokerConfig -n {ns} -b {master}", "777"),
    ("updateKvConfig -n {ns} -s NS -k K -v V", "success"),
    ("deleteKvConfig -n {ns} -s NS -k K", "success"),
    ("wipeWritePerm -n {ns} -b broker-a", "OK"),
    ("topicRoute -n {ns} -t admin", '"perm":4'),
    ("addWritePerm -n {ns} -b broker-a", "OK"),
    ("topicRoute -n {ns} -t admin", '"perm":6'),
    ("listUser -n {ns} -b {master}", "CODE: 3"),
    ("cleanBrokerMetadata -a {controller} -bn broker-a -b 9 -c DefaultCluster", "CODE: 2009"),
    ("electMaster -a {controller} -n {ns} -b 2 -bn broker-a -c DefaultCluster", "broker-a"),
    ("getSyncStateSet -a {controller} -b broker-a", "#MasterBrokerId\t2"),
    ("deleteExpiredCommitLog -n {ns} -c DefaultCluster", "success"),
    ("cleanExpiredCQ -n {ns} -c DefaultCluster", "success"),
    ("cleanUnusedTopic -n {ns} -c DefaultCluster", "success"),
    ("deleteTopic -n {ns} -c DefaultCluster -t admin", "success"),
    ("deleteTopic -n {ns} -c DefaultCluster -t admin", "success"),
]
"""Commands to a group of three whose master is broker 1, and what their output must contain, in this order."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, classes: Path) -> Iterator[BrokerGroup]:
    """Three controllers and three brokers."""
    cluster = BrokerGroup(tmp_path_factory.mktemp("group"), controllers=3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def servers(group: BrokerGroup) -> str:
    """The name servers in the form that Java accepts."""
    return group.addresses.replace(",", ";")


def administer(classes: Path, home: Path, commands: list[str]) -> list[list[str]]:
    """The output of each command."""
    program = JavaProcess(classes, home, "AdminCommands")
    answers: list[list[str]] = [[]]
    for count, command in enumerate(commands, 1):
        program.say(command)
        program.wait_for("<== ", 60, count=count)
    assert program.process.stdin is not None
    program.process.stdin.close()
    for line in program.end(30):
        if line.startswith("<== "):
            answers[-1].append(line)
            answers.append([])
        elif line and not any(noise in line for noise in NOISE):
            answers[-1].append(line)
    return answers[:-1]


def test_every_command_of_mqadmin_is_answered(classes, group, tmp_path):
    """With a result or with a refusal that has a code; none hangs."""
    master = group.settle()
    names = {
        "ns": servers(group),
        "controller": group.addresses.split(",")[0],
        "master": f"127.0.0.1:{master.ports['remoting']}",
    }
    commands = [command.format(**names) for command, _said in COMMANDS]
    answers = administer(classes, tmp_path / "home", commands)
    wrong = [
        (command, answer)
        for command, (_, said), answer in zip(commands, COMMANDS, answers, strict=True)
        if answer[-1] != "<== ended" or said not in "\n".join(answer)
    ]
    assert not wrong


def test_rates_of_topics_and_groups_are_shown(classes, group, tmp_path):
    """`statsAll` shows what was sent and pulled just now; never a 0 that was not measured."""
    group.settle()
    commands = [
        "updateTopic -n {ns} -c DefaultCluster -t rates -r 4 -w 4",
        *["sendMessage -n {ns} -t rates -p body"] * 3,
        "consumeMessage -n {ns} -t rates -g raters -c 10",
        "resetOffsetByTime -n {ns} -g raters -t rates -s -1",
        "statsAll -n {ns} -t rates",
    ]
    answers = administer(classes, tmp_path / "home", [command.format(ns=servers(group)) for command in commands])
    (row,) = [line.split() for line in answers[-1] if line.split()[:2] == ["rates", "raters"]]
    in_tps, out_tps, in_day, out_day = row[-4:]
    assert int(in_day) >= 1, row
    assert out_day == in_day, row
    assert float(in_tps) > 0, row
    assert float(out_tps) > 0, row


def test_the_java_client_does_what_we_offer(classes, group, tmp_path):
    group.settle()
    program = JavaProcess(classes, tmp_path / "home", "ClientFeatures", servers(group), *FEATURES)
    said = {line for line in program.end(400) if line.split(" ")[0] in FEATURES}
    assert said == {f"{name} ok" for name in FEATURES}


def test_the_java_client_outlives_the_master(classes, group, tmp_path):
    """After kill -9 every acknowledged message is consumed, and the client fails over by itself."""
    master = group.settle()
    program = JavaProcess(classes, tmp_path / "home", "Failover", servers(group), "failover", "1000")
    program.wait_for("acknowledged", 60, count=4)
    master.kill()
    program.wait_for("acknowledged", 60, count=12)
    program.say("stop")
    program.end(120)
    last = program.wait_for("lost ", 1)
    assert last.startswith("lost 0 of "), last
    assert int(last.split()[3].rstrip(",")) > 100
    master.start()
    group.settle()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
class TestReplicas:
    """The master dies, or stands still, and no controller can elect another one: RocketMQ's consumers go on."""

    MESSAGES = 2_000

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[BrokerGroup]:
        """Three controllers and three brokers, to be killed; a master that is gone leaves the routes quickly."""
        quickly = ("--set", "controller.broker_lost_grace_ms=500")
        made = BrokerGroup(tmp_path, controllers=3, arguments={"controller": quickly})
        try:
            made.start()
            yield made
        finally:
            made.end()

    def test_they_serve_while_one_controller_is_left(self, classes, cluster, tmp_path, how):
        """It shows them in its routes, and cannot elect."""
        master = cluster.settle()
        program = JavaProcess(classes, tmp_path / "home", "ReplicaReads", servers(cluster), "left", str(self.MESSAGES))
        program.wait_for("consumed 200", 120)
        for each in cluster.controllers[1:]:
            each.kill()
        master.process.send_signal(how)
        program.wait_for("complete", 240)
        assert cluster.master() is None
        assert sum(replica_reads(each) for each in cluster.brokers if each is not master) > 0
        program.kill()

    def test_a_group_that_reads_from_a_replica_needs_nobody_else(self, classes, cluster, tmp_path, how):
        """Its `brokerId` names the replica; then the master and all controllers are gone."""
        master = cluster.settle()
        replica = next(each for each in cluster.brokers if each is not master)
        chosen = replica.status()["id"]
        wanted = f"updateSubGroup -n {servers(cluster)} -c DefaultCluster -g alone_group -i {chosen}"
        assert "success" in "\n".join(administer(classes, tmp_path / "home", [wanted])[0])
        program = JavaProcess(classes, tmp_path / "home", "ReplicaReads", servers(cluster), "alone", str(self.MESSAGES))
        program.wait_for("consumed 200", 120)
        until(lambda: replica_reads(replica) > 0, "the consumer was not sent to the replica")
        for each in cluster.controllers:
            each.kill()
        master.process.send_signal(how)
        program.wait_for("complete", 240)
        assert cluster.master() is None
        program.kill()


def replica_reads(broker: Broker) -> int:
    """Requests that a broker answered as a replica."""
    lines = broker.page("/metrics").decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("rocketmq_replica_reads_total "))


@pytest.mark.parametrize("mode", ["controller", "dledger"])
def test_the_java_client_works_on_through_restarts_and_a_failover(classes: Path, tmp_path: Path, mode: str) -> None:
    """Every broker is restarted in turn, then the master is killed: with controllers, and where brokers elect it.

    With routes polled each second, and retries until the time limit of a send, none fails at its caller.
    """
    group = BrokerGroup(tmp_path / "group", controllers=3 if mode == "controller" else 1, mode=mode)
    group.directory.mkdir()
    try:
        group.start()
        program = JavaProcess(classes, tmp_path / "home", "Failover", servers(group), "rolling", "1000", "5000")
        program.wait_for("acknowledged", 60, count=4)
        for broker in group.brokers:
            assert broker.end(signal.SIGTERM) == 0
            broker.start()
            group.settle()
            goes_on(program)
        group.settle().kill()
        goes_on(program)
        program.say("stop")
        program.end(120)
        last = program.wait_for("lost ", 1)
        assert last.startswith("lost 0 of "), last
        assert last.endswith(" 0 sends failed"), last
    finally:
        group.end()


def goes_on(program: JavaProcess) -> None:
    """Wait until more is acknowledged, and consumed, than now."""
    before = progress(program)
    until(lambda: all(now > then for now, then in zip(progress(program), before, strict=True)), "it stands still")


def progress(program: JavaProcess) -> tuple[int, int]:
    """How many messages are acknowledged, and how many consumed, as it has said last."""
    words = [line for line in program.lines if line.startswith("acknowledged")][-1].split()
    return int(words[1]), int(words[3])


class TestBrokersOfRocketMQ:
    """Two brokers of RocketMQ form a group under our controllers."""

    CONFIGURATION = """
brokerClusterName=Elsewhere
brokerName=elsewhere
brokerId=-1
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
enableControllerMode=true
allAckInSyncStateSet=true
flushDiskType=SYNC_FLUSH
mappedFileSizeCommitLog=16777216
timerWheelEnable=false
"""

    @pytest.fixture
    def start(self, classes: Path, group: BrokerGroup, tmp_path: Path) -> Iterator[object]:
        """Starts broker 1, 2, ... and waits until it serves."""
        programs: list[JavaProcess] = []

        def start_one(number: int) -> tuple[JavaProcess, str]:
            home = tmp_path / f"broker-{number}"
            home.mkdir()
            address = free_port()
            lines = [self.CONFIGURATION, f"listenPort={address}", f"haListenPort={free_port()}"]
            lines += [f"namesrvAddr={servers(group)}", f"controllerAddr={servers(group)}"]
            lines += [f"storePathRootDir={home}/store", f"storePathCommitLog={home}/store/commitlog"]
            lines += [f"storePathEpochFile={home}/store/epochs", f"storePathBrokerIdentity={home}/store/identity"]
            (home / "broker.conf").write_text("\n".join(lines))
            main = "org.apache.rocketmq.broker.BrokerStartup"
            program = JavaProcess(classes, home, main, "-c", str(home / "broker.conf"))
            programs.append(program)
            program.wait_for("boot success", 120)
            return program, f"127.0.0.1:{address}"

        yield start_one
        for program in programs:
            program.kill()

    def test_a_group_of_theirs_fails_over(self, classes, group, start, tmp_path):
        """They register and get in sync; after kill -9 of the master, producer and consumer lose nothing."""
        controller = group.addresses.split(",")[0]
        ask = f"getSyncStateSet -a {controller} -b elsewhere"

        def state() -> str:
            return "\n".join(administer(classes, tmp_path / "home", [ask])[0])

        first, first_address = start(1)
        _second, second_address = start(2)
        until(lambda: "#SyncStateSetNums\t2" in state(), "not in sync")
        assert f"#MasterAddr\t{first_address}" in state()
        topic = f"updateTopic -n {servers(group)} -b {first_address} -t theirs -r 4 -w 4"
        assert "success" in "\n".join(administer(classes, tmp_path / "home", [topic])[0])
        program = JavaProcess(classes, tmp_path / "client", "Failover", servers(group), "theirs", "1000")
        program.wait_for("acknowledged", 60, count=6)
        first.kill()
        began = time.monotonic()
        until(lambda: f"#MasterAddr\t{second_address}" in state(), "no other master")
        assert time.monotonic() - began < 60
        program.wait_for("acknowledged", 60, count=14)
        program.say("stop")
        program.end(120)
        assert program.wait_for("lost ", 1).startswith("lost 0 of ")
