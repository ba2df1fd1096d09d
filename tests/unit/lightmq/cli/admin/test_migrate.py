"""`lightmq migrate rocketmq`: its actions, what it prints, and wrong options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run
from lightmq.migrate import report
from lightmq.migrate.migration import Migration

ROW = {
    "topic": "orders", "source": "a/0", "target": "b/0", "copied": 7, "returned": 1, "lag": 2, "state": "behind",
    "reason": "the disk is full",
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is called; nothing is carried out."""
    found: list[str] = []

    def noted(name: str, result: Any = None) -> Any:
        async def call(self: Migration, *_: Any) -> Any:
            found.append(name)
            self.plan.left_out["lite\x1b"] = "not offered"
            return result

        return call

    for name in ("read", "copy_to_the_end", "follow"):
        monkeypatch.setattr(Migration, name, noted(name))
    for name in ("let_producers_in", "send_producers_back"):
        monkeypatch.setattr(Migration, name, noted(name, ["orders"]))

    async def rows(_migration: Migration) -> list[dict[str, Any]]:
        return [dict(ROW)]

    async def compared(_migration: Migration) -> list[dict[str, Any]]:
        return [{**ROW, "state": "equal" if "equal" in found else "offset 3 differs"}]

    monkeypatch.setattr(report, "lags", rows)
    monkeypatch.setattr(report, "verified", compared)
    return found


def migrate(*arguments: str) -> int:
    return run(["migrate", "rocketmq", *arguments, "--from", "old:9876"])


def test_a_copy_and_the_mirror(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate() == migrate("--follow") == 0
    assert calls == ["copy_to_the_end", "follow"]
    shown = capsys.readouterr()
    assert "copied 7 messages in 1 queues" in shown.out
    assert "not mirrored: lite\\u001b: not offered" in shown.err


def test_the_status(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate("status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TOPIC", "SOURCE", "TARGET", "COPIED", "RETURNED", "LAG", "STATE"]
    assert lines[1].split() == ["orders", "a/0", "b/0", "7", "1", "2", "behind:", "the", "disk", "is", "full"]
    assert migrate("status", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"left_out": "lite\x1b", "reason": "not offered"}, ROW,
    ]  # fmt: skip
    assert calls == ["read", "read"]


def test_a_difference_is_a_failure(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate("verify") == 1
    assert "differ" in capsys.readouterr().err
    calls.append("equal")
    assert migrate("verify") == 0


def test_producers_move(calls: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate("switch") == migrate("switch-back") == 0
    assert calls == ["let_producers_in", "send_producers_back"]
    assert capsys.readouterr().out.splitlines() == [
        "producers write here now: orders", "producers write at the source now: orders",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"), [(["--name", "a/b"], "slash"), (["--rate", "-1"], "negative"), (["--follow", "x"], "x")]
)
def test_wrong_options_are_named(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate(*arguments) != 0
    assert why in capsys.readouterr().err


def test_patterns_choose() -> None:
    from lightmq.cli.admin.migrate import _chosen

    assert _chosen(None)("anything")
    assert _chosen(["ord*", "x"])("orders")
    assert not _chosen(["ord*"])("other")
