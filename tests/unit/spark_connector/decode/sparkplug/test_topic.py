"""Sparkplug topics: which are valid, their parts, and why others are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_connector.decode.sparkplug.bodies import SparkplugTopic, parse_topic


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("spBv1.0/g/NBIRTH/n", SparkplugTopic("NBIRTH", "g", "n")),
        ("spBv1.0/g/DDATA/n/d", SparkplugTopic("DDATA", "g", "n", "d")),
        ("spBv1.0/STATE/host", SparkplugTopic("STATE", host="host")),
        (
            "spBv1.0/Sparkplug B Devices/NCMD/Raspberry Pi",
            SparkplugTopic("NCMD", "Sparkplug B Devices", "Raspberry Pi"),
        ),
        (None, "no MQTT topic"),
        ("spAv1.0/g/NBIRTH/n", "does not begin with spBv1.0"),
        ("spBv1.0/g/NBIRTH/n/d", "NBIRTH does not belong to a topic of 5 levels"),
        ("spBv1.0/g/DDATA/n", "DDATA does not belong to a topic of 4 levels"),
        ("spBv1.0/g/NOTHING/n", "'NOTHING' is no Sparkplug message type"),
        ("spBv1.0/g/NDATA", "not spBv1.0/group/type/node"),
        ("spBv1.0//NDATA/n", "not spBv1.0/group/type/node"),
        ("spBv1.0/g/ddata/n/d", "'ddata' is no"),
        ("spBv1.0/STATE", "not spBv1.0/group"),
    ],
)
def test_topics(topic: str | None, expected: SparkplugTopic | str) -> None:
    found = parse_topic(topic)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert expected in found
    else:
        assert isinstance(found, SparkplugTopic)
        assert replace(found, births=()) == expected


def test_where_births_are() -> None:
    node, device = parse_topic("spBv1.0/g/NDATA/n"), parse_topic("spBv1.0/g/DCMD/n/d")
    assert isinstance(node, SparkplugTopic)
    assert isinstance(device, SparkplugTopic)
    assert node.births == ("spBv1.0/g/NBIRTH/n",)
    assert device.births == ("spBv1.0/g/NBIRTH/n", "spBv1.0/g/DBIRTH/n/d")
