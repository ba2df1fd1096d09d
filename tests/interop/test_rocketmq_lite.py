"""RocketMQ's own Java client and tools with lite topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.interop.test_rocketmq_java import administer
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]
CREATING = (
    ("updateTopic -n {ns} -b {ns} -t agents -r 2 -w 2 -a +message.type=LITE,+lite.topic.expiration=60", "success"),
    ("updateSubGroup -n {ns} -b {ns} -g workers --attributes +lite.bind.topic=agents", "success"),
)
ASKING = (
    ("getBrokerLiteInfo -n {ns} -b {ns} -d", "agents"),
    ("getParentTopicInfo -n {ns} -p agents", "workers"),
    ("getLiteTopicInfo -n {ns} -p agents -l s-1 -s", "java-1@workers"),
    ("getLiteClientInfo -n {ns} -p agents -g workers -c java-1 -s", "%LMQ%$agents$s-1"),
    ("getLiteGroupInfo -n {ns} -p agents -g workers -k 5", "Total Lag Count: 0"),
    ("getLiteGroupInfo -n {ns} -p agents -g workers -l s-1 -k 5", "Total Lag Count: 0"),
    ("triggerLiteDispatch -n {ns} -p agents -g workers", "dispatched"),
)


def test_a_java_client_pops_lite_topics_and_mqadmin_looks_into_them(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    server.start()
    try:
        classes = rocketmq_java.compiled(tmp_path)
        address = f"127.0.0.1:{server.ports['remoting']}"
        for number, (commands, program) in enumerate(((CREATING, True), (ASKING, False))):
            asked = [command.format(ns=address) for command, _expected in commands]
            answers = administer(classes, tmp_path / f"home-{number}", asked)
            for command, (_, expected), answer in zip(asked, commands, answers, strict=True):
                assert expected in "\n".join(answer), (command, answer)
            if program:
                client = JavaProcess(classes, tmp_path / "client", "LiteTopics", address)
                client.wait_for("ready", 60)
                shown = [
                    line for line in client.lines if line.split(" ")[0] in ("subscribed", "popped", "acknowledged")
                ]
                assert shown == [
                    "subscribed 0", "popped body 0 of s-1 at 0, tried 0", "acknowledged OK",
                    "popped body 1 of s-1 at 1, tried 0", "acknowledged OK",
                ]  # fmt: skip
                client.kill()
    finally:
        server.kill_if_running()
