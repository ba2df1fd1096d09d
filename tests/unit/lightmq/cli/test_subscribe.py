from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run


def test_messages_are_printed_and_then_acknowledged(mqtt_server: Any, capfdbinary: Any) -> None:
    mqtt_server.deliver = [(b"a", b"one", 1), (b"a", b"\xff", 0), (b"b", b"not wanted any more", 1)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "#", "--count", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert lines[0] == {"topic": "a", "qos": 1, "retain": False, "dup": False, "payload": "one"}
    assert lines[1]["payload_base64"] == "/w=="
    assert [body for kind, body in mqtt_server.received if kind >> 4 == 4] == [b"\x00\x01"]


def test_plain_output_is_the_payload(mqtt_server: Any, capfdbinary: Any) -> None:
    mqtt_server.deliver = [(b"a/b", b"one", 0)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "a/+", "-n", "1", "-v"]) == 0
    assert capfdbinary.readouterr().out == b"a/b one\n"


def test_a_refused_filter_is_told(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.granted = 0x80
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "a"]) == 1
    assert "refused to subscribe to a" in capsys.readouterr().err
