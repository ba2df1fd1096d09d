"""Records as plain values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.store.inspection.commands import records, text
from remoting.protocol.errors import LocalMisuse
from tests.sim.log_judge import read_log


def test_all_records(directory: Path) -> None:
    """Each one, in order, as JSON."""
    found = list(records(directory))
    assert [each["position"] for each in found] == [seen.position for seen in read_log(directory)]
    assert {each["type"] for each in found} == {"message", "control"}
    names = [change.get("key") for change in found[0]["changes"]]
    assert names == ["parent", "plant/7", "plant/+"]
    last = next(each for each in found if each.get("body") == "last")
    assert last["properties"] == [["originMqttTopic", "plant/7/temp"]]
    json.dumps(found)


def test_queue_start_and_limit(directory: Path) -> None:
    """By name or id, from a position inside a record, at most this many."""
    by_name = list(records(directory, queue="plant/7"))
    assert by_name == list(records(directory, queue="1"))
    assert [each["queues"][1][1] for each in by_name] == list(range(len(by_name)))
    later = list(records(directory, queue="1", start=by_name[3]["position"] + 1, limit=2))
    assert later == by_name[4:6]
    with pytest.raises(LocalMisuse, match="no queue named"):
        records(directory, queue="nobody")


def test_damage_is_shown_in_its_place(directory: Path) -> None:
    """What lies before and after the damage is printed, and the damage between them."""
    judged = read_log(directory)
    victim = judged[5].position
    path = directory / "log" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[victim + 50] ^= 1
    path.write_bytes(data)
    seen = list(records(directory))
    assert [each["position"] for each in seen] == [each.position for each in judged]
    assert [each for each in seen if each["type"] == "damaged"] == [
        {"position": victim, "size": judged[5].end - victim, "type": "damaged", "reason": seen[5]["reason"]}
    ]


def test_text_or_base64() -> None:
    """The name distinguishes bytes that are not text from text."""
    assert text("body", b"\xff") == {"body_base64": "/w=="}
    assert text("body", b"x") == {"body": "x"}
