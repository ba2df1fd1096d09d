"""What the driver process says and how it follows orders; the queries themselves run in the process tests."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from types import SimpleNamespace

import pytest

from lightmq.demo import query


def fake_query() -> SimpleNamespace:
    """What `report` and `serve` use of a kept query."""
    progress = [
        SimpleNamespace(batchId=number, numInputRows=10 * (number + 1), durationMs={"triggerExecution": 7})
        for number in range(2)
    ]
    calls: list[str] = []
    return SimpleNamespace(
        name="ledger",
        failed=None,
        progress=lambda: progress,
        begin=lambda: calls.append("begin"),
        await_first_batch=lambda: True,
        drain=lambda: calls.append("drain"),
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


def test_drain_then_stop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are answered in their order, a drain when every query was begun; the end of input stops too."""
    subject = fake_query()
    monkeypatch.setattr(sys, "stdin", io.StringIO("drain\n"))
    query.serve([subject], lambda _: subject.begin())
    assert subject.calls == ["begin", "drain", "stop"]
    assert [event["event"] for event in said(capsys)] == ["batch", "batch", "drained", "stopped"]


def test_queries_begin_one_by_one_and_the_first_makes_it_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named while its first batch is made; one that was given up is not called ready."""
    first, second = fake_query(), fake_query()
    query.begin([first, second], "4.x", threading.Event())
    assert [event["event"] for event in said(capsys)] == ["step", "ready", "step", "complete"]
    first.await_first_batch = lambda: False
    query.begin([first], "4.x", threading.Event())
    assert [event["event"] for event in said(capsys)] == ["step", "complete"]
    stopping = threading.Event()
    stopping.set()
    query.begin([second], "4.x", stopping)
    assert said(capsys) == []


def test_behind_a_query_that_was_given_up_none_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = fake_query(), fake_query()
    first.failed, first.await_first_batch = "no broker", lambda: False
    query.begin([first, second], "4.3", threading.Event())
    assert (first.calls, second.calls) == (["begin"], [])
    assert [event["event"] for event in said(capsys)] == ["step", "complete"]


def test_commands_come_first() -> None:
    """They are what people wait for."""
    options = argparse.Namespace(out="out", nameserver="n", host="h", trigger="1 second", window="1 s", watermark="1 s")
    assert list(query.writers(None, options)) == ["commands", "ledger", "windows"]


def test_arguments_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an address there is nothing to read."""
    with pytest.raises(SystemExit):
        query.main([])
    assert "--nameserver" in capsys.readouterr().err
