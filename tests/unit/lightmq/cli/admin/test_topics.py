from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run

BODY = {"topics": [{"topic": "plant", "queues": [{"queue": 0, "id": 1, "min": 2, "max": 9}], "messages": 7}]}


def test_topics_as_columns_and_as_json(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log_server.topics_body = json.dumps(BODY).encode()
    assert run(["topics", "--server", log_server.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TOPIC", "BROKER", "QUEUES", "MESSAGES", "FIRST-LAST"]
    assert lines[1].split() == ["plant", "broker-a", "1", "7", "2-9"]
    assert run(["topics", "--server", log_server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["broker"] == "broker-a"
    assert run(["topics", "other", "--server", log_server.address, "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_mqtt_topics_are_found_by_a_part_of_their_names(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A beginning with a slash cannot be a topic with queues, which is said."""
    log_server.topics_body = json.dumps(BODY).encode()
    row = {"topic": "meters/street-003/house-117", "messages": 0, "below": 4}
    log_server.tree_body = json.dumps({"children": [row], "next": ""}).encode()
    assert run(["topics", "--search", "house-117", "--server", log_server.address]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["TOPIC", "BROKER", "MESSAGES", "BELOW"], [row["topic"], "broker-a", "0", "4"]]
    assert run(["topics", "--search", "house-117", "--count", "1", "plant", "--server", log_server.address]) == 2
    assert "not both" in capsys.readouterr().err
    assert run(["topics", "meters/street-003", "--server", log_server.address]) == 0
    assert "lightmq topics --search meters/street-003" in capsys.readouterr().err


def test_an_invalid_answer_is_reported(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "--server", log_server.address]) == 1
    assert "TOPIC_LIST cannot be read" in capsys.readouterr().err


def test_a_topic_is_created_with_its_queues_and_type(log_server: Any) -> None:
    assert run(["topics", "create", "metrics", "--batch", "--queues", "2", "--server", log_server.address]) == 0
    assert run(["topics", "create", "plain", "--server", log_server.address]) == 0
    batch, plain = log_server.created
    assert (batch["topic"], batch["writeQueueNums"], batch["attributes"]) == ("metrics", "2", "+queue.type=BatchCQ")
    assert (plain["topic"], plain["readQueueNums"]) == ("plain", "4")
    assert "attributes" not in plain


def test_a_topic_has_its_own_retention(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`create` and `update` set it in attributes; `update` leaves unnamed ones unchanged."""
    server = ["--server", log_server.address]
    assert run(["topics", "create", "t", "--retention", "7d", "--retention-size", "2GiB", *server]) == 0
    assert log_server.created[0]["attributes"] == "+retention.ms=604800000,+retention.bytes=2147483648"
    known = {"readQueueNums": 9, "writeQueueNums": 8, "perm": 4, "topicFilterType": "MULTI_TAG", "topicSysFlag": 2}
    log_server.topic_config = json.dumps({**known, "order": True}).encode()
    assert run(["topics", "update", "t", "--retention", "forever", "--retention-size", "log", *server]) == 0
    assert run(["topics", "update", "t", "--queues", "3", *server]) == 0
    kept, queues = log_server.created[1:]
    assert kept["attributes"] == "+retention.ms=0,-retention.bytes"
    assert {key: kept[key] for key in known} == {key: str(value) for key, value in known.items()}
    assert (kept["order"], "attributes" in queues, queues["readQueueNums"]) == ("true", False, "3")
    assert run(["topics", "update", "t", "--retention", "soon", *server]) == 2
    assert "1h30m" in capsys.readouterr().err
