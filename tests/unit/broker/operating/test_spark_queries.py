"""What Spark queries report is kept, shown and forgotten; it is bounded whatever comes."""

from __future__ import annotations

import pytest

from broker.operating import spark_queries as module
from broker.operating.spark_queries import ENDED_MS, SILENT_MS
from remoting.protocol.bodies.operating_body import PLACES_MAX, SparkReport, encode
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from tests.unit.broker.operating.asking import asked


def report(name: str = "q", **members: object) -> bytes:
    return encode(SparkReport(**({"id": name, "run": "r", "name": name, "status": "running"} | members)))  # type: ignore[arg-type]


async def queries(running) -> list[dict]:
    return (await asked(running, Code.SPARK_QUERIES))["queries"]


async def test_the_last_batch_and_the_ones_before_are_shown(running) -> None:
    assert await asked(running, Code.SPARK_REPORT, report()) is None
    places = [("t", "broker-a", 0, 7), ("s", "broker-a", 1, 8)]
    for batch in (1, 2):
        running.clock.advance_ms(1_000)
        body = report(batch=batch, rows=10, rows_per_s=2.5, batch_ms=40, lag_messages=3, state_rows=5, places=places)
        await asked(running, Code.SPARK_REPORT, body)
    (row,) = await queries(running)
    now_ms = running.clock.now_ms()
    assert (row["name"], row["batch"], row["rows"], row["state_rows"], row["topics"]) == ("q", 2, 10, 5, ["s", "t"])
    assert row["history"] == [[now_ms - 1_000, 2.5, 40, 3], [now_ms, 2.5, 40, 3]]
    assert (row["updated_ms"], row["by"], "places" in row) == (now_ms, "anonymous", False)


async def test_a_failed_query_keeps_its_figures_and_its_error(running) -> None:
    await asked(running, Code.SPARK_REPORT, report(batch=4, rows=9, batch_ms=1))
    await asked(running, Code.SPARK_REPORT, report(status="failed", last_error="x" * 5_000))
    (row,) = await queries(running)
    assert (row["status"], row["batch"], row["rows"], len(row["last_error"])) == ("failed", 4, 9, module.TEXT_MAX)
    running.clock.advance_ms(ENDED_MS + 1)
    running.broker.maintain(running.clock.now_ms())
    assert await queries(running) == []


async def test_silent_and_surplus_queries_are_forgotten(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES_MAX", 2)
    for name in "abc":
        await asked(running, Code.SPARK_REPORT, report(name))
    assert [row["name"] for row in await queries(running)] == ["b", "c"]
    running.clock.advance_ms(SILENT_MS)
    await asked(running, Code.SPARK_REPORT, report("c"))
    running.clock.advance_ms(1)
    running.broker.maintain(running.clock.now_ms())
    assert [row["name"] for row in await queries(running)] == ["c"]


async def test_durations_of_batches_are_counted_by_query(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERIES_MAX", 2)
    await asked(running, Code.SPARK_REPORT, report("a"))
    for name, batch_ms in (("a", 90), ("a", 400), ("b", 70_000), ("c", 1), ("a", 2_000_000), ("d", 2)):
        await asked(running, Code.SPARK_REPORT, report(name, batch=1, batch_ms=batch_ms))
    _kind, page = running.registry.page()
    lines = [line for line in page.decode().splitlines() if line.startswith("rocketmq_spark_batch_duration_seconds")]
    assert 'rocketmq_spark_batch_duration_seconds_bucket{le="0.1",query="a"} 1.0' in lines
    assert 'rocketmq_spark_batch_duration_seconds_bucket{le="0.5",query="a"} 2.0' in lines
    assert 'rocketmq_spark_batch_duration_seconds_bucket{le="1800.0",query="a"} 2.0' in lines
    assert 'rocketmq_spark_batch_duration_seconds_sum{query="a"} 2000.49' in lines
    counts = {line.split('"')[1]: line.rpartition(" ")[2] for line in lines if "_count{" in line}
    assert counts == {"a": "3.0", "b": "1.0", "other": "2.0"}


async def test_refused_reports(running) -> None:
    many = report(places=[("t", "b", queue, 0) for queue in range(PLACES_MAX + 1)])
    assert (await asked(running, Code.SPARK_REPORT, many))[0] == ResponseCode.INVALID_PARAMETER
    assert (await asked(running, Code.SPARK_REPORT, b"\x90"))[0] == ResponseCode.INVALID_PARAMETER
    judged = []

    def policy(identity: str, action: str, resource: str) -> bool:
        judged.append((action, resource))
        return action == "locate"

    running.judge_by(policy)
    assert (await asked(running, Code.SPARK_REPORT, report(places=[("t", "b", 0, 0)])))[0] == ResponseCode.NO_PERMISSION
    assert judged == [("locate", ""), ("consume", "t/#")]
    assert (await asked(running, Code.SPARK_QUERIES))[0] == ResponseCode.NO_PERMISSION


async def test_nobody_replaces_the_query_of_another(running) -> None:
    running.judge_by(lambda identity, action, resource: True)
    assert await asked(running, Code.SPARK_REPORT, report(batch=1), AccessKey="anna") is None
    refused = await asked(running, Code.SPARK_REPORT, report(batch=2), AccessKey="otto")
    assert refused == (ResponseCode.NO_PERMISSION, "query q is reported by somebody else")
    assert [(row["by"], row["batch"]) for row in await queries(running)] == [("anna", 1)]
