"""A trace goes from an MQTT device through a query of Spark to another device, with the query's own spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from lightmq.spark import trace_rows
from tests.interop.mqtt_clients import Paho5
from tests.interop.spark_scenario import Frames, run
from tests.support.otlp_receiver import OtlpReceiver

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


async def publish(ports: dict[str, int], topic: str, parent: str) -> None:
    """One message of an MQTT 5 device with this context."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("traceparent", parent), ("tracestate", "a=1")]
    device = Paho5("device")
    await device.connect(ports["mqtt"])
    device.client.publish(topic, b"97", 1, properties=properties).wait_for_publish(20)
    await device.close()


async def test_a_trace_through_a_query(load: Frames, ports: dict[str, int], server: str, tmp_path: Path) -> None:
    """Kept as it is by a column; and by `trace_rows`, as the child of a span of the worker."""
    watcher = Paho5("watcher")
    await watcher.connect(ports["mqtt"])
    await watcher.subscribe("fan/#", 1)
    await publish(ports, "traced/7", SAMPLED)
    columns = "mqttTopic,body,storeTimestamp,properties,traceparent"
    plain = load(mqttFilter="traced/#", columns=columns).selectExpr("'fan/plain' AS mqttTopic", "body", "traceparent")
    plain.write.format("rocketmq").option("nameServer", server).mode("append").save()
    rows = load(stream=True, mqttFilter="traced/#", startingOffsets="earliest", columns=columns)
    with OtlpReceiver() as receiver:
        traced = trace_rows(rows.where("cast(body AS string) > 90"), "hot", endpoint=receiver.endpoint)
        run(traced.selectExpr("'fan/traced' AS mqttTopic", "'on' AS body", "traceparent"), server, tmp_path / "traced")
        ((service, span),) = receiver.until(lambda spans: len(spans) == 1)
    assert (service, span.name, span.trace_state) == ("spark", "process hot", "a=1")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert [(each.key, each.value.string_value) for each in span.attributes][-1] == (
        "messaging.destination.name",
        "traced/7",
    )
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 240 * 10**9
    await watcher.until(lambda: len(watcher.messages) == 2)
    carried: dict[str, Any] = {message.topic: message.said["user"] for message in watcher.messages}
    assert carried == {
        "fan/plain": [("traceparent", SAMPLED)],
        "fan/traced": [("traceparent", f"00-{TRACE}-{span.span_id.hex()}-01")],
    }
    await watcher.close()
