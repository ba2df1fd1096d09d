"""Lag of one group and of all, as columns and as JSON, and invalid answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run

QUEUE = json.dumps({"brokerName": "broker-a", "queueId": 2, "topic": "plant"})
NUMBERS = {"brokerOffset": 9, "consumerOffset": 2, "minOffset": 4, "waitingMs": 1_500, "pullOffset": 2}
STATS = {"offsetTable": {QUEUE: NUMBERS}, "consumeTps": 0.0}
DONE = {"offsetTable": {QUEUE: NUMBERS | {"consumerOffset": 9, "waitingMs": 0}}}


def test_all_groups(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"consumeStatsList": [{"spark\x1b": [STATS]}, {"b": [DONE]}], "truncated": True}
    log_server.stats_body = json.dumps(body).encode()
    assert run(["lag", "--server", log_server.address]) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["GROUP", "TOPIC", "BROKER", "QUEUE", "OFFSET", "END", "MESSAGES", "SECONDS"]
    assert lines[1] == ["b", "plant", "broker-a", "2", "9", "9", "0", "0.0"]
    assert lines[2] == ["spark\\u001b", "plant", "broker-a", "2", "2", "9", "5", "1.5"]
    assert "more groups than it shows" in said.err


def test_one_group_as_json(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log_server.stats_body = json.dumps(STATS).encode()
    assert run(["lag", "spark", "--json", "--server", log_server.address]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["group"] == "spark"
    assert (row["offset"], row["end"], row["messages"], row["seconds"]) == (2, 9, 5, 1.5)
    assert log_server.queries == [{"consumerGroup": "spark", "road": "lightmq"}]
    log_server.stats_body = b'{"offsetTable":{}}'
    assert run(["lag", "nobody", "--server", log_server.address]) == 1
    assert "no broker has offsets of group 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"", b"1", b"{}", b'{"consumeStatsList": [1]}', b'{"consumeStatsList":[{"g":[{}]}]}'])
def test_an_invalid_answer_is_reported(log_server: Any, capsys: pytest.CaptureFixture[str], body: bytes) -> None:
    log_server.stats_body = body
    assert run(["lag", "--server", log_server.address]) == 1
    assert "about its groups cannot be read" in capsys.readouterr().err
