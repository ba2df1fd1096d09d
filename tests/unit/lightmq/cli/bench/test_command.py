"""What `lightmq bench` refuses, and what it prints of counts; the loads themselves run in `tests/processes`."""

from __future__ import annotations

import pytest

from lightmq.cli.application import run
from lightmq.cli.bench import over_mqtt, over_rocketmq
from lightmq.cli.bench.command import text
from lightmq.cli.bench.meter import LoadReceiver, LoadSender, body, report


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "8"], "--size must be 24"),
        (["--publishers", "0"], "--publishers must be 1"),
        (["--rate", "-1"], "--rate must not be negative"),
        (["--duration", "soon"], "30m"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("mqtt", "rocketmq"):
        assert run(["bench", protocol, *words]) != 0
        assert said in capsys.readouterr().err


def test_the_figures_for_people() -> None:
    sender, receiver = LoadSender(), LoadReceiver(1)
    message = body(1, 0, 100)
    sender.sent += 1
    sender.decided(0)
    receiver.take(message)
    shown = text(report([sender], [receiver], 2.0, 100))
    assert "published  1 messages of 100 bytes in 2.0 s" in shown
    assert "received   1 of 1" in shown
    assert over_mqtt.measure is not over_rocketmq.measure


def test_without_a_server_the_reason_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "mqtt", "--port", "1"]) == 1
    assert run(["bench", "rocketmq", "--server", "127.0.0.1:1"]) == 1
    assert [line[:8] for line in capsys.readouterr().err.splitlines()] == ["lightmq:", "lightmq:"]
