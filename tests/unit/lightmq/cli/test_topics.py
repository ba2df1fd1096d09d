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


def test_an_answer_that_is_none_is_told(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topics", "--server", log_server.address]) == 1
    assert "TOPIC_LIST cannot be read" in capsys.readouterr().err
