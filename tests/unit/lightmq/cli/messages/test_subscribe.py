from __future__ import annotations

import json
import queue
import threading
from typing import Any

import pytest

from lightmq.cli.application import run
from lightmq.cli.messages import subscribe


def test_messages_are_printed_and_then_acknowledged(mqtt_server: Any, capfdbinary: Any) -> None:
    mqtt_server.deliver = [(b"a", b"one", 1), (b"a", b"\xff", 0), (b"b", b"not wanted any more", 1)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "#", "--count", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert lines[0] == {"topic": "a", "qos": 1, "retain": False, "dup": False, "payload": "one"}
    assert lines[1]["payload_base64"] == "/w=="
    assert [body for kind, body in mqtt_server.received if kind >> 4 == 4] == [b"\x00\x01"]


def test_a_server_that_keeps_sending_does_not_delay_the_end(
    mqtt_server: Any, monkeypatch: Any, capfdbinary: Any
) -> None:
    """The reading thread waits for room when the last requested message is printed."""
    waits, render = threading.Event(), subscribe.render

    class Tight(queue.Queue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if self.full():
                waits.set()
            super().put(item, block, timeout)

    def slow(message: Any, **options: bool) -> bytes:
        assert waits.wait(30)
        return render(message, **options)

    monkeypatch.setattr(subscribe, "QUEUE_MAX", 1)
    monkeypatch.setattr(subscribe.queue, "Queue", Tight)
    monkeypatch.setattr(subscribe, "render", slow)
    mqtt_server.deliver = [(b"a", b"%d" % number, 1) for number in range(50)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "#", "--count", "1"]) == 0
    assert capfdbinary.readouterr().out == b"0\n"


def test_plain_output_is_the_payload(mqtt_server: Any, capfdbinary: Any) -> None:
    mqtt_server.deliver = [(b"a/b", b"one", 0)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "a/+", "-n", "1", "-v"]) == 0
    assert capfdbinary.readouterr().out == b"a/b one\n"


def test_a_refused_filter_is_reported(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.granted = 0x80
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "a"]) == 1
    said = capsys.readouterr().err
    assert "refused to subscribe to a: unspecified error (0x80); MQTT 3.1.1 gives no reason; likely causes: " in said


def test_each_refused_filter_is_reported_with_its_reason(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.connack_tail = b"\0"
    mqtt_server.granted = b"\0\x01\x87\x8f"
    assert run(["sub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a", "-t", "b", "-t", "c"]) == 1
    assert capsys.readouterr().err == (
        "lightmq: the server refused to subscribe to b: not authorized (0x87); c: topic filter invalid (0x8f) "
        "(it granted a)\n"
    )


def test_a_lower_qos_than_requested_is_reported(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.granted = 0
    mqtt_server.deliver = [(b"a", b"one", 0)]
    assert run(["sub", "-p", str(mqtt_server.port), "-t", "a", "-n", "1"]) == 0
    assert "subscribed to a with QoS 0 instead of 1" in capsys.readouterr().err


def test_the_end_of_the_connection_ends_the_command(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.connack_tail = b"\0"
    for body, words in ((b"\x8b\0", "server shutting down (0x8b)"), (b"\0\0", "normal disconnection (0x00)")):
        mqtt_server.disconnect_with = body
        assert run(["sub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a"]) == 1
        assert f"SUBSCRIBE was not answered: the server ended the connection: {words}" in capsys.readouterr().err
