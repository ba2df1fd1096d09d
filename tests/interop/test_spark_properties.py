"""Properties of MQTT 5 messages as columns in Spark, and properties of Spark's rows in MQTT 5."""

from __future__ import annotations

from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.interop.mqtt_clients import Paho5
from tests.interop.spark_scenario import Frames

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


def said() -> Properties:
    """Every property a message can have."""
    made = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    made.UserProperty = [("unit", "celsius"), ("line", "7"), ("mqttContentType", "mine")]
    made.ContentType = "application/json"
    made.ResponseTopic = "answers/7"
    made.CorrelationData = b"\x00\x01"
    made.MessageExpiryInterval = 3_600
    made.PayloadFormatIndicator = 1
    return made


async def test_properties_of_a_publish_are_columns_of_a_row(load: Frames, ports: dict[str, int]) -> None:
    """User properties under their own names, the others under ours, which publishers cannot use."""
    device = Paho5("device")
    await device.connect(ports["mqtt"])
    device.client.publish("said/7/temp", b"21.5", 1, properties=said()).wait_for_publish(20)
    await device.close()
    row = load(mqttFilter="said/#").first()
    assert row.properties == {
        "originMqttTopic": "said/7/temp",
        "clientId": "device",
        "unit": "celsius",
        "line": "7",
        "%user%mqttContentType": "mine",
        "mqttContentType": "application/json",
        "mqttResponseTopic": "answers/7",
        "mqttCorrelationData": "AAE=",
        "mqttExpiry": "3600",
        "mqttPayloadFormat": "1",
    }
    assert row.contentType == "application/json"
    selected = load(mqttFilter="said/#", columns="contentType,properties").selectExpr(
        "properties['unit']", "contentType"
    )
    assert [tuple(each) for each in selected.collect()] == [("celsius", "application/json")]


async def test_a_user_property_that_is_repeated(load: Frames, ports: dict[str, int]) -> None:
    """The map has each pair, in order; looking up a key returns the first."""
    device = Paho5("device")
    await device.connect(ports["mqtt"])
    await device.publish("repeated/7", b"x", 1)  # k = 1 and k = 2
    await device.close()
    pairs = "filter(map_entries(properties), pair -> pair.key = 'k')"
    row = load(mqttFilter="repeated/#").selectExpr("properties['k'] as one", f"{pairs}.value as each").first()
    assert (row.one, row.each) == ("1", ["1", "2"])


async def test_properties_of_rows_arrive_at_a_subscriber(spark: Any, server: str, ports: dict[str, int]) -> None:
    """The map column becomes the user properties and content type of an MQTT 5 message."""
    watcher = Paho5("watcher")
    await watcher.connect(ports["mqtt"])
    await watcher.subscribe("told/#", 1)
    rows = spark.sql(
        "select 'told/1' as mqttTopic, 'x' as body,"
        " map('unit', 'kelvin', 'mqttContentType', 'text/plain') as properties"
    )
    rows.write.format("rocketmq").option("nameServer", server).mode("append").save()
    await watcher.until(lambda: bool(watcher.messages))
    [message] = watcher.messages
    assert (message.topic, message.payload) == ("told/1", b"x")
    assert message.said == {"user": [("unit", "kelvin")], "content_type": "text/plain"}
    await watcher.close()


async def test_topics_and_filters_of_the_server_itself_are_refused(load: Frames, spark: Any, server: str) -> None:
    """With a clear error, before anything is read or written."""
    for special, says in (("$share/g/said/#", "shared subscription"), ("$SYS/#", "over MQTT")):
        with pytest.raises(Exception, match=says):
            load(mqttFilter=special).count()
    row = spark.sql("select '$SYS/broker/version' as mqttTopic, 'x' as body")
    with pytest.raises(Exception, match="the server's own"):
        row.write.format("rocketmq").option("nameServer", server).mode("append").save()
