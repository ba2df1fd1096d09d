"""`lightmq timers`: numbers, the next messages, one of them, its recall, and invalid answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run
from remoting.protocol.bodies.recall_handle import RecallHandle, encode_handle

HANDLE = encode_handle(RecallHandle("plant", "broker-a", 1_790_000_000_500, "7F00", 3))
TIMER = {
    "due_ms": 1_790_000_000_500, "stored_ms": 1_789_000_000_000, "topic": "plant/a", "id": "7F00", "body_bytes": 9,
    "handle": HANDLE,
}  # fmt: skip
NUMBERS = {"waiting": 5, "next_due_ms": 1_790_000_000_500, "by_delay": {"5m": 2, "1h": 0, "later": 3}}


def answer(value: object) -> bytes:
    return json.dumps(value).encode()


def test_how_many_wait(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", log_server.address]
    log_server.timer_answers = [answer(NUMBERS), answer(NUMBERS), answer(NUMBERS | {"next_due_ms": None})]
    assert run(["timers", *server]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown[2] = shown[2][:3] + shown[2][-1:]  # how long ago that is
    assert shown == [
        ["broker", "broker-a"],
        ["waiting", "5", "messages"],
        ["next", "due", "2026-09-21T14:13:20.500Z", "ago)"],
        ["within", "5m", "2"],
        ["within", "1h", "0"],
        ["later", "3"],
    ]
    assert run(["timers", "--json", *server]) == 0
    assert json.loads(capsys.readouterr().out) == {"broker": "broker-a", **NUMBERS}
    assert run(["timers", *server]) == 0
    assert "next due  -" in capsys.readouterr().out
    fullest = {"fullest_second": {"second_ms": 1_790_000_000_000, "messages": 4}}
    log_server.timer_answers = [answer(NUMBERS | fullest)]
    assert run(["timers", *server]) == 0
    assert "most at   2026-09-21T14:13:20.000Z: 4 due in one second" in capsys.readouterr().out


def test_the_next_ones_page_by_page(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = {"timers": [TIMER], "more": True, "next": "5/3"}
    last = {"timers": [TIMER | {"topic": "plant/\x1b"}], "more": False, "next": "5/4"}
    log_server.timer_answers = [answer(first), answer(last), answer(first)]
    assert run(["timers", "--count", "9", "--server", log_server.address]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["DUE", "TOPIC", "BYTES", "BROKER", "HANDLE"]
    assert lines[1][-5:] == ["ago", "plant/a", "9", "broker-a", HANDLE]
    assert lines[2][-4] == "plant/\\u001b"
    assert log_server.queries[-1] == {"limit": "8", "after": "5/3", "road": "lightmq"}
    assert run(["timers", "--count", "1", "--json", "--server", log_server.address]) == 0
    assert json.loads(capsys.readouterr().out) == {"broker": "broker-a", **TIMER}


def test_one_message_and_its_recall(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", log_server.address]
    shown = answer({"timer": TIMER | {"properties": {"TIMER_DELAY_MS": "5"}}})
    log_server.timer_answers = [shown, shown]
    assert run(["timers", HANDLE, *server]) == 0
    out = capsys.readouterr().out
    assert "topic   plant/a" in out
    assert "TIMER_DELAY_MS = 5" in out
    assert run(["timers", HANDLE, "--json", *server]) == 0
    assert json.loads(capsys.readouterr().out)["properties"] == {"TIMER_DELAY_MS": "5"}
    assert run(["timers", HANDLE, "--recall", *server]) == 0
    assert capsys.readouterr().out == "recalled 7F00 of plant\n"
    assert log_server.queries[-1]["recallHandle"] == HANDLE


def test_a_change_of_its_time(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its new handle is printed, or that it was delivered."""
    server = ["--server", log_server.address]
    assert run(["timers", HANDLE, "--delay", "1.5", *server]) == 0
    assert capsys.readouterr().out == "bW92ZWQ=\n"
    sent = {"topic": "plant", "recallHandle": HANDLE, "delayMs": "1500", "road": "lightmq"}
    assert log_server.queries[-1] == sent
    assert run(["timers", HANDLE, "--delay", "0", *server]) == 0
    assert capsys.readouterr().out == "delivered 7F00\n"


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["--recall"], 2, "name the message"),
        (["--delay", "5"], 2, "name the message"),
        ([HANDLE, "--recall", "--delay", "5"], 2, "exclude each other"),
        ([HANDLE, "--delay", "-3"], 2, "not between 0 and"),
        (["nonsense!"], 2, "recall handle is invalid"),
        ([encode_handle(RecallHandle("t", "elsewhere", 5))], 1, "no broker 'elsewhere'"),
    ],
)
def test_invalid_arguments(
    log_server: Any, capsys: pytest.CaptureFixture[str], words: list[str], status: int, reason: str
) -> None:
    assert run(["timers", *words, "--server", log_server.address]) == status
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--count", "1"], [HANDLE]], ids=["numbers", "page", "one"])
@pytest.mark.parametrize("body", [b"", b"[]", b'{"timers": 1}'])
def test_an_invalid_answer(log_server: Any, capsys: pytest.CaptureFixture[str], words: list[str], body: bytes) -> None:
    if not words and body.startswith(b"{"):
        return  # numbers that are missing are shown as 0
    log_server.timer_answers = [body]
    assert run(["timers", *words, "--server", log_server.address]) == 1
    assert "TIMERS cannot be read" in capsys.readouterr().err
