"""Routes of new topics: once the request that created a topic is answered, every controller has its route."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.processes.broker_group import BrokerGroup, Controller
from tests.processes.rig import Process, Server, no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
TOPICS = 100
PATIENT = ("--set", "broker.registration_wait_ms=20000")
"""A loaded machine must not make a broker give a controller up."""
SEND = {
    "a": "group", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
}  # fmt: skip


class Place:
    """A broker and its controllers, with a connection to each."""

    def __init__(self, broker: int, controllers: list[int], processes: list[Server]) -> None:
        self.processes = processes
        self.broker = BlockingConnection.dial(f"127.0.0.1:{broker}")
        self.controllers = [BlockingConnection.dial(f"127.0.0.1:{port}") for port in controllers]

    def request(self, code: int, body: bytes = b"", **fields: str) -> None:
        reply = self.broker.request(Command(code, fields=fields, body=body))
        assert reply.code == ResponseCode.SUCCESS, reply.remark

    def misses(self, topic: str) -> list[int]:
        """The controllers that do not know the topic at this moment."""
        query = {"topic": topic}
        replies = [
            each.request(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields=dict(query))) for each in self.controllers
        ]
        return [at for at, reply in enumerate(replies) if reply.code != ResponseCode.SUCCESS]


def all_in_one(tmp_path: Path) -> Place:
    server = Server(tmp_path / "data")
    server.start()
    return Place(server.ports["remoting"], [server.ports["remoting"]], [server])


def one_broker(tmp_path: Path, options: tuple[str, ...] = PATIENT) -> Place:
    controller = Controller(tmp_path, 1, 0, "")
    controller.start()
    arguments = ["broker", "--data", str(tmp_path / "broker-data"), "--controllers", f"127.0.0.1:{controller.port}"]
    broker = Process(tmp_path / "broker", [*arguments, *options], "remoting")
    broker.start()
    return Place(broker.port, [controller.port], [broker, controller])


def group_of_two(tmp_path: Path) -> Place:
    group = BrokerGroup(tmp_path, controllers=3, brokers=2, arguments={"broker": PATIENT})
    group.start()
    master = group.master()
    assert master is not None
    return Place(master.port, [each.port for each in group.controllers], group.all)


@pytest.fixture(params=[all_in_one, one_broker, group_of_two])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = request.param(tmp_path)
    yield made
    for process in made.processes:
        process.kill_if_running()


def test_every_new_topic_is_found_once_its_first_send_is_answered(place: Place) -> None:
    misses = {}
    for number in range(TOPICS):
        topic = f"new-{number}"
        place.request(RequestCode.SEND_MESSAGE_V2, b"x", b=topic, **SEND)
        misses[topic] = place.misses(topic)
    assert not {topic: at for topic, at in misses.items() if at}
    for number in range(TOPICS // 10):
        place.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=f"made-{number}", defaultTopic="TBW102", readQueueNums="4",
            writeQueueNums="4", perm="6", topicFilterType="SINGLE_TAG", order="false",
        )  # fmt: skip
        assert place.misses(f"made-{number}") == []
        heartbeat = {"clientID": "client", "consumerDataSet": [{"groupName": f"group-{number}"}]}
        place.request(RequestCode.HEART_BEAT, json.dumps(heartbeat).encode())
        assert place.misses(f"%RETRY%group-{number}") == []
    no_traceback(*place.processes)


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
def test_sends_continue_while_the_only_controller_is_paused_or_dead(tmp_path: Path, fate: signal.Signals) -> None:
    place = one_broker(tmp_path, ("--set", "broker.registration_wait_ms=500"))
    broker, controller = place.processes
    try:
        assert controller.process is not None
        controller.process.send_signal(fate)
        began = time.monotonic()
        for number in range(50):
            place.request(RequestCode.SEND_MESSAGE_V2, b"x", b=f"new-{number}", **SEND)
        assert time.monotonic() - began < 50 * 0.5
    finally:
        broker.kill_if_running()
        controller.kill_if_running()
