"""The list of sessions and one of them, as columns and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run
from lightmq.cli.outcome import printable

AWAY = {
    "client": "dev-1", "user": "anna", "connected": False, "expiry_s": 60, "ends_ms": 1_790_000_000_000,
    "subscriptions": 1, "backlog": 7, "removed": {"retention": 2, "expired": 1},
}  # fmt: skip
HERE = AWAY | {
    "client": "dev-2",
    "shared_backlog": 5_328,
    "user": None,
    "connected": True,
    "ends_ms": None,
    "removed": {},
}
FILTER = {
    "filter": "a/+", "qos": 2, "no_local": True, "retain_as_published": False, "subscription_id": 9, "queue": 4,
    "offset": 3, "backlog": 7, "removed": 2,
}  # fmt: skip


def page(*rows: dict[str, Any], more: bool = False) -> bytes:
    return json.dumps({"sessions": rows, "total": 2, "more": more}).encode()


def test_all_sessions_page_by_page(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", log_server.address]
    log_server.session_answers = [page(AWAY, more=True), page(HERE)]
    assert run(["sessions", *server]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["CLIENT", "USER", "STATE", "EXPIRY", "FILTERS", "BACKLOG", "REMOVED"]
    assert lines[1][:4] == ["dev-1", "anna", "away,", "ends"]
    said = "7 1 expired before they could be sent, 2 deleted by retention before they were read"
    assert " ".join(lines[1]).endswith(f"ago 1 min 1 {said}")
    assert lines[2] == ["dev-2", "-", "connected", "1", "min", "1", "7", "+", "5328", "shared", "0"]
    assert [query["after"] for query in log_server.queries] == ["", "dev-1"]
    log_server.session_answers = [page(AWAY)]
    assert run(["sessions", "--json", "--count", "1", *server]) == 0
    assert json.loads(capsys.readouterr().out) == {"broker": "broker-a", **AWAY}
    assert log_server.queries[-1]["limit"] == "1"


def test_a_session_without_an_expiry_is_shown_as_endless(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Not as MQTT's number for it."""
    kept = AWAY | {"expiry_s": 0xFFFF_FFFF, "ends_ms": None}
    shown = json.dumps({"session": kept | {"filters": [], "in_flight": 0, "received": 0, "wills": 0}}).encode()
    log_server.session_answers = [page(kept), shown]
    for command in (["sessions"], ["sessions", "dev-1"]):
        assert run([*command, "--server", log_server.address]) == 0
        out = capsys.readouterr().out
        assert "never" in out
        assert "until it is ended" in out
        assert "4294967295" not in out


def test_one_session_with_its_subscriptions(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server = ["--server", log_server.address]
    body = json.dumps({"session": AWAY | {"filters": [FILTER], "in_flight": 3, "received": 1, "wills": 0}}).encode()
    log_server.session_answers = [body, body]
    assert run(["sessions", "dev-1", *server]) == 0
    out = capsys.readouterr().out
    assert "ago (2026-09-21T14:13:20Z)" in out
    assert "3 noted, 1 QoS 2 publishes not released" in out
    assert out.splitlines()[-1].split() == ["a/+", "2", "no_local", "9", "7", "2"]
    assert run(["sessions", "dev-1", "--json", *server]) == 0
    assert json.loads(capsys.readouterr().out)["filters"] == [FILTER]
    assert run(["sessions", "nobody", *server]) == 1
    assert "no broker has a session" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"", b"{}", b'{"sessions": 1}'])
def test_an_invalid_answer_is_reported(log_server: Any, capsys: pytest.CaptureFixture[str], body: bytes) -> None:
    log_server.session_answers = [body]
    assert run(["sessions", "--server", log_server.address]) == 1
    assert "SESSION_LIST cannot be read" in capsys.readouterr().err


def test_a_client_id_moves_no_cursor() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\u001b[2Jb\\u000a"
