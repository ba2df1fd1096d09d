"""Traces of messages end to end: paho, RocketMQ's gRPC client and our remoting client against `lightmq up`, with a real
receiver of OTLP."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from remoting.client.blocking import BlockingConnection, checked
from remoting.client.threads import Consumer
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import light_queue_name
from remoting.protocol.records.properties import encode_properties
from tests.processes.broker_group import BrokerGroup
from tests.processes.grpc_calls import client
from tests.processes.rig import DEADLINE_S, Client, Installation, Server
from tests.support.otlp_receiver import OtlpReceiver

pytestmark = pytest.mark.processes
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
STATE = "vendor=t61rcWkgMzE"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A receiver that takes everything."""
    with OtlpReceiver() as running:
        yield running


@pytest.fixture
def server(tmp_path: Path, receiver: OtlpReceiver) -> Iterator[Installation]:
    """`lightmq up` that sends its spans there, soon."""
    settings = (f"tracing.endpoint={receiver.endpoint}", "tracing.interval_ms=20", "tracing.timeout_ms=200")
    running = Installation(
        tmp_path / "data", "--grpc-port", "0", *(part for one in settings for part in ("--set", one))
    )
    running.start()
    yield running
    running.kill_if_running()


class Device:
    """A paho client of MQTT 5."""

    def __init__(self, server: Server, name: str) -> None:
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        self.client.connect("127.0.0.1", server.port)
        self.client.loop_start()

    def publish(self, topic: str, *user: tuple[str, str]) -> None:
        """With QoS 1, and these user properties; returns when it is acknowledged."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = list(user)
        self.client.publish(topic, b"21.5", 1, properties=properties).wait_for_publish(DEADLINE_S)

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


def names(spans: list[tuple[str, Span]]) -> list[str]:
    return sorted(span.name for _service, span in spans)


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def page(server: Installation, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.ports['admin']}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


def test_one_message_from_a_device_to_a_device_and_a_consumer(server: Installation, receiver: OtlpReceiver) -> None:
    """Its context arrives unchanged everywhere, and every edge has a span below it; unsampled messages have none."""
    reader = Client(server, "reader")
    reader.subscribe(("plant/#", 1))
    device = Device(server, "device")
    device.publish("plant/7/temp", ("traceparent", f"00-{TRACE}-{PARENT}-00"))
    device.publish("plant/7/temp", ("traceparent", "nonsense"))
    device.publish("plant/7/temp", ("traceparent", SAMPLED), ("tracestate", STATE))
    reader.until(lambda: len(reader.messages) == 3)
    device.close()
    queue = light_queue_name(b"plant/7/temp").decode()
    with Consumer(server.address, group="g", topic=queue, queue=0) as consumer:
        carried = dict(consumer.pull(0, wait_ms=0).messages[-1].properties)
    assert (carried[b"traceparent"], carried[b"tracestate"]) == (SAMPLED.encode(), STATE.encode())
    spans = receiver.until(lambda spans: len(spans) >= 3)
    assert names(spans) == ["deliver plant/7/temp", "publish plant/7/temp", "receive plant"]
    for service, span in spans:
        assert (service, span.trace_id.hex(), span.parent_span_id.hex()) == ("lightmq", TRACE, PARENT)
        assert span.trace_state == STATE
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    by_name = {span.name: attributes(span) for _service, span in spans}
    assert by_name["publish plant/7/temp"]["messaging.client.id"] == "device"
    assert by_name["deliver plant/7/temp"]["messaging.client.id"] == "reader"
    assert by_name["receive plant"]["messaging.consumer.group.name"] == "g"
    shown = page(server, "application/openmetrics-text")
    for name in ("rocketmq_mqtt_publish_acknowledge_seconds", "rocketmq_mqtt_delivery_seconds"):
        assert re.search(rf'^{name}_bucket.* # {{trace_id="{TRACE}"}} ', shown, re.MULTILINE), name
    assert 'rocketmq_trace_spans_total{outcome="exported"} 3.0' in page(server)


def test_rocketmq_clients_by_remoting_and_grpc(server: Installation, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """Sends, a batch and a refused one among them; Apache's gRPC client sends and receives by POP."""
    text = encode_properties([(b"traceparent", SAMPLED.encode()), (b"UNIQ_KEY", b"7F0000010001")]).decode()
    send = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": text}
    with BlockingConnection.dial(server.address, 10_000) as connection:
        checked(connection.request(Command(Code.SEND_MESSAGE_V2, fields=send, body=b"one")))
        refused = connection.request(Command(Code.SEND_MESSAGE_V2, fields=send | {"b": "no such/name"}, body=b"two"))
    assert refused.code
    spans = receiver.until(lambda spans: len(spans) >= 2)
    assert names(spans) == ["publish no such/name", "publish orders"]
    assert {span.name: span.status.code for _service, span in spans}["publish no such/name"] == Status.STATUS_CODE_ERROR
    found = client(tmp_path, "traced", server.ports["grpc"])
    assert found == SAMPLED
    spans = receiver.until(lambda spans: "receive orders" in names(spans) and names(spans).count("publish orders") == 2)
    assert {span.trace_id.hex() for _service, span in spans} == {TRACE}


@pytest.mark.slow
def test_proxy_processes_send_spans_of_their_own(tmp_path: Path, receiver: OtlpReceiver) -> None:
    """A publish at one of them is delivered by all: one span for each subscriber, whichever process has it."""
    settings = (f"tracing.endpoint={receiver.endpoint}", "tracing.interval_ms=20")
    chosen = [part for one in settings for part in ("--set", one)]
    server = Installation(tmp_path / "data", "--proxies", "2", *chosen)
    server.start()
    try:
        readers = [Client(server, f"reader-{number}") for number in range(8)]
        for each in readers:
            each.subscribe(("plant/#", 1))
        device = Device(server, "device")
        device.publish("plant/7/temp", ("traceparent", SAMPLED))
        for each in readers:
            each.until(lambda each=each: len(each.messages) == 1)
        device.close()
        spans = receiver.until(lambda spans: len(spans) >= 9)
        assert names(spans) == ["deliver plant/7/temp"] * 8 + ["publish plant/7/temp"]
        assert {(service, span.parent_span_id.hex()) for service, span in spans} == {("lightmq-proxy", PARENT)}
    finally:
        server.kill_if_running()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_group_of_three_goes_on_tracing_after_its_master_dies(
    tmp_path: Path, receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxy and master have spans of each message; replicas, which copy the log, have none."""
    monkeypatch.setenv("LIGHTMQ_TRACING__ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("LIGHTMQ_TRACING__INTERVAL_MS", "20")
    group = BrokerGroup(tmp_path, brokers=3, in_sync_min=2)
    try:
        group.start()
        for turn in (1, 2):
            master = group.settle()
            device = Device(group.proxy, f"device-{turn}")
            device.publish(f"plant/{turn}", ("traceparent", SAMPLED))
            device.close()
            queue = light_queue_name(b"plant/%d" % turn).decode()
            with Consumer(f"127.0.0.1:{master.port}", group="g", topic=queue, queue=0) as consumer:
                assert dict(consumer.pull(0, wait_ms=0).messages[-1].properties)[b"traceparent"] == SAMPLED.encode()
            spans = receiver.until(lambda spans, turn=turn: len(spans) >= 2 * turn)
            assert sorted((service, span.name) for service, span in spans[2 * turn - 2 :]) == [
                ("lightmq-broker", "receive plant"),
                ("lightmq-proxy", f"publish plant/{turn}"),
            ]
            master.kill()
    finally:
        group.end()


def test_a_receiver_that_takes_nothing_changes_nothing(tmp_path: Path, receiver: OtlpReceiver) -> None:
    """Messages of MQTT 3.1.1 begin a trace when all are to; what finds no room or no receiver is counted."""
    receiver.status = 400
    settings = (f"tracing.endpoint={receiver.endpoint}", "tracing.root_ratio=1", "tracing.interval_ms=60000",
                "tracing.queue_spans_max=8")  # fmt: skip
    server = Installation(tmp_path / "data", *(part for one in settings for part in ("--set", one)))
    server.start()
    try:
        sender = Client(server, "sender")
        for number in range(20):
            sender.publish("plant/7", b"%d" % number)
        sender.close()
        assert 'rocketmq_trace_spans_total{outcome="dropped"} 12.0' in page(server)
        assert server.end(15) == 0
        assert receiver.requests == 1
    finally:
        server.kill_if_running()
    assert json.dumps(receiver.spans(), default=str) == "[]"
