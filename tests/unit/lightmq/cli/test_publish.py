from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from lightmq.cli.application import run


def test_messages_are_numbered_and_acknowledged(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "pub",
        "-p",
        str(mqtt_server.port),
        "-t",
        "a/b",
        "-m",
        "n{n}",
        "--count",
        "5000",
        "--timeout",
        "2",
        "--json",
    ]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "a/b", "acknowledged": 5000, "qos": 1}
    assert mqtt_server.payloads() == [b"n%d" % number for number in range(1, 5001)]


def test_lines_of_input(mqtt_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\r\nthree")))
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "--stdin", "--retain"]) == 0
    assert mqtt_server.payloads() == [b"one", b"two", b"three"]
    assert all(kind & 1 for kind, _ in mqtt_server.received if kind >> 4 == 3)
    assert "3 messages acknowledged" in capsys.readouterr().err


def test_without_an_acknowledgement_the_status_says_so(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.acknowledge = False
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "-m", "x", "--timeout", "0.1"]) == 1
    assert "message 1 was not acknowledged within 0.1 s" in capsys.readouterr().err


def test_a_lost_connection_is_told(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.close_after_publish = True
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "-m", "x"]) == 1
    assert "connection was lost; message 1" in capsys.readouterr().err


def test_message_or_input_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a"]) == 1
    assert run(["pub", "-t", "a", "-m", "x", "--stdin"]) == 1
    assert "either --message TEXT or --stdin" in capsys.readouterr().err


def test_a_count_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a", "-m", "x", "--count", "0"]) == 1
    assert "--count must be at least 1, not 0" in capsys.readouterr().err


def test_properties_need_version_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a", "-m", "x", "--property", "k=v"]) == 1
    assert "add -V 5" in capsys.readouterr().err
    assert run(["pub", "-t", "a", "-m", "x", "-V", "4"]) == 1
    assert "-V must be 3.1.1 or 5, not 4" in capsys.readouterr().err
