"""What the driver process says and how it follows orders; the queries themselves run in the process tests."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from lightmq.demo import query


def fake_query(*, failure: str | None = None) -> SimpleNamespace:
    """What `report` and `serve` use of a streaming query."""
    progress = [
        SimpleNamespace(batchId=number, numInputRows=10 * (number + 1), durationMs={"triggerExecution": 7})
        for number in range(2)
    ]
    calls: list[str] = []
    return SimpleNamespace(
        name="ledger",
        recentProgress=progress,
        exception=lambda: failure,
        processAllAvailable=lambda: calls.append("drain"),
        stop=lambda: calls.append("stop"),
        calls=calls,
    )


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Events printed so far."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_batch_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second look at the same progress says nothing new."""
    seen: dict[str, tuple[int, int]] = {}
    query.report([fake_query()], seen)
    assert [(event["batch"], event["rows"], event["total"]) for event in said(capsys)] == [(0, 10, 10), (1, 20, 30)]
    query.report([fake_query()], seen)
    assert said(capsys) == []


def test_a_failed_query_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """With Spark's own words."""
    query.report([fake_query(failure="boom")], {"ledger": (9, 0)})
    assert said(capsys) == [{"event": "failed", "query": "ledger", "error": "boom"}]


def test_drain_then_stop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are answered in their order; the end of input stops too."""
    subject = fake_query()
    monkeypatch.setattr(sys, "stdin", io.StringIO("drain\n"))
    query.serve([subject])
    assert subject.calls == ["drain", "stop"]
    assert [event["event"] for event in said(capsys)] == ["batch", "batch", "drained", "stopped"]


def test_arguments_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an address there is nothing to read."""
    with pytest.raises(SystemExit):
        query.main([])
    assert "--nameserver" in capsys.readouterr().err
