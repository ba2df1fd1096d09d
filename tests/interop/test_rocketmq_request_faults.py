"""Requests between MQTT 5 and RocketMQ's Java client under load, over a failover, with large answers and late ones."""

from __future__ import annotations

import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.request_load import LATE_S, STARTED_S, MqttAsker, MqttService, asked_by_java, program, warm
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.rig import Installation, Process, no_traceback

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
RATE, FLOWING, AGAIN_S = 100, 300, 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Installation]:
    """A started server, and a second proxy is the test's business."""
    made = Installation(tmp_path / "data")
    made.start()
    yield made
    made.kill_if_running()


@pytest.fixture
def java(server: Installation, tmp_path: Path) -> Iterator[JavaProcess]:
    """RocketMQ's Java client."""
    made = program(tmp_path, server.address, server.port)
    yield made
    made.kill()


def dropped(server: Installation, reason: str) -> int:
    """The broker's counter of drops."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics", timeout=10) as page:
        found = re.search(rf'broker_drops_total{{reason="{reason}"}} (\d+)', page.read().decode())
    return int(found[1]) if found else 0


def test_every_request_is_answered_at_a_constant_rate(server: Installation, java: JavaProcess) -> None:
    """`python -m tests.interop.request_load` runs the same for longer."""
    asker, service = MqttAsker(server.port), MqttService(server.port)
    warm(java, asker)
    asker.ask_many(1_000, 250)
    found = asker.figures(LATE_S)
    assert (found["sent"], found["answered"], found["wrong"], found["twice"]) == (1_001, 1_001, 0, 0), found
    found = asked_by_java(java, 1_000, 250)
    assert (found["sent"], found["answered"], found["wrong"], found["twice"]) == (1_000, 1_000, 0, 0), found
    asker.close()
    service.close()


def test_answers_up_to_the_limit_and_beyond(server: Installation, java: JavaProcess) -> None:
    """The largest answer comes as it is; one byte more is refused at its sender, and other answers go on."""
    asker = MqttAsker(server.port)
    assert asker.answered(asker.ask(), STARTED_S), java.lines[-20:]
    largest = asker.ask(answer_bytes=str(MESSAGE_BYTES_MAX))
    assert asker.answered(largest, LATE_S), java.lines[-20:]
    java.wait_for("served SEND_OK", LATE_S)
    beyond = asker.ask(answer_bytes=str(MESSAGE_BYTES_MAX + 1))
    refusal = java.wait_for("failed ", LATE_S)
    assert "CODE: 13" in refusal, refusal
    assert f"larger than {MESSAGE_BYTES_MAX} bytes" in refusal, refusal
    assert asker.answered(asker.ask(), LATE_S)
    assert not asker.answered(beyond, 0)
    asker.close()


def test_answers_after_the_requester_has_given_up_or_gone(server: Installation, java: JavaProcess) -> None:
    asker, late = MqttAsker(server.port), MqttService(server.port, "late", "nothing/here")
    warm_service = MqttService(server.port)
    warm(java, asker)
    warm_service.close()
    asked = asker.ask(wait_ms="1500")
    assert not asker.answered(asked, 0.5), "the asker's limit of time is its own"
    assert asker.answered(asked, LATE_S), "a late answer is an ordinary message"
    gone = MqttAsker(server.port, "gone")
    gone.ask(wait_ms="1500")
    gone.close()
    java.wait_for("served SEND_OK", LATE_S, count=2)

    requests: list[tuple[str, bytes]] = []
    late.client.on_message = lambda _c, _d, one: requests.append(
        (one.properties.ResponseTopic, one.properties.CorrelationData)
    )
    late.client.subscribe("rooms/+/ask", 1)
    found = asked_by_java(java, 1, 1, 500)
    assert (found["answered"], found["timed_out"]) == (0, 1), found
    until(lambda: requests, "the request did not come")
    answer_to(late, *requests[0])  # the client has forgotten it
    assert asker.answered(asker.ask(), LATE_S)
    java.kill()
    until(lambda: (answer_to(late, *requests[0]), dropped(server, "reply_not_delivered"))[1], "not counted")
    no_traceback(server)
    asker.close()
    late.close()


def answer_to(service: MqttService, topic: str, correlation: bytes) -> None:
    """Answer a request again."""
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.CorrelationData = correlation
    service.client.publish(topic, b"late", 1, properties=properties).wait_for_publish(LATE_S)


def test_no_answer_is_wrong_when_the_master_is_killed(tmp_path: Path) -> None:
    """Asker and service are clients of different proxies; each request is answered or times out at its asker."""
    group = BrokerGroup(tmp_path, controllers=3, brokers=3)
    other = Process(tmp_path / "other-proxy", ["proxy", "--controllers", group.addresses], "mqtt")
    java = None
    try:
        group.start()
        other.start()
        asker, service = MqttAsker(group.proxy.port), MqttService(other.port)
        java = program(tmp_path, group.addresses.replace(",", ";"), other.port)
        warm(java, asker)
        java.say(f"0 {RATE} 5000")
        asking = threading.Event()

        def ask() -> None:
            while not asking.wait(1 / RATE):
                asker.ask()

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        until(lambda: len(asker.took_s) >= FLOWING, "requests are not answered")
        java.wait_for("answered 300", LATE_S)
        master = group.settle()
        master.kill()
        killed_at = len(asker._asked)
        lines = sum("answered " in line for line in java.lines)
        until(lambda: any(number > killed_at + RATE for number in list(asker.took_s)), "MQTT requests stay unanswered")
        java.wait_for("answered ", AGAIN_S, count=lines + 3)
        asking.set()
        thread.join()
        java.say("stop")
        line = java.wait_for("asked {", LATE_S, count=2)
        found = asker.figures(5)
        print("MQTT:", found, "RocketMQ:", line, "served:", len(service.served), max(service.served.values()))
        assert (found["wrong"], '"wrong": 0' in line, '"open": 0' in line, '"twice": 0' in line) == (
            0,
            True,
            True,
            True,
        )
        no_traceback(group.proxy, other, *group.brokers)
        asker.close()
        service.close()
    finally:
        if java is not None:
            java.kill()
        other.kill_if_running()
        group.end()
