"""Acts outlive the log around them, in order and once each, for as long as is configured."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.audit import kept as module
from broker.store.state.state_kinds import AUDITED
from remoting.protocol.frames.codes import RequestCode as Code
from tests.support.clock import ManualClock
from tests.unit.broker import conftest
from tests.unit.broker.operating.asking import asked, publish

LOG_MS, AUDIT_MS = 60_000, 3_600_000


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[conftest.BrokerBench]:
    """A broker whose log keeps a minute and whose record of acts an hour."""
    small = dataclasses.replace(
        conftest.SETTINGS, segment_size_bytes=65_536, first_segment_size_bytes=65_536, retention_ms=LOG_MS
    )
    monkeypatch.setattr(conftest, "SETTINGS", small)
    made = conftest.BrokerBench(tmp_path / "data", ManualClock(), audit_retention_ms=AUDIT_MS)
    yield made
    made.store.close()


async def act(bench: Any, *names: str) -> None:
    for name in names:
        bench.clock.advance_ms(1_000)
        await asked(bench, Code.SESSION_END, client=name)


async def expire_log(bench: Any) -> None:
    """Fill segments, let them grow old, and go."""
    for _ in range(4):
        await publish(bench, *[b"t"] * 20, body=bytes(1_000))
    written = bench.store.end_position
    bench.clock.advance_ms(LOG_MS)
    for _ in range(200):
        if bench.store.begin_position >= written - 65_536:
            break
        bench.clock.advance_ms(1_000)
        await publish(bench, b"t", body=bytes(1_000))
        bench.store.maintain(bench.clock.now_ms())
        await bench.settle()
    assert bench.store.begin_position >= written - 65_536


async def listed(bench: Any, **fields: str) -> list[str]:
    """What the acts were about, over all pages, the newest first."""
    found: list[str] = []
    while True:
        page = await asked(bench, Code.AUDIT_LIST, **fields)
        found += [record["target"].removeprefix("client=") for record in page["records"]]
        if not page["next"]:
            return found
        fields["before"] = page["next"]


async def test_acts_stay_when_the_log_expires(bench) -> None:
    await act(bench, "a", "b", "c")
    await expire_log(bench)
    await act(bench, "d", "e")
    assert bench.store.reading.bounds(bench.store.queues.find(b"\x01audit"))[0] == 3
    for limit in ("1", "2", "3", "200"):
        assert await listed(bench, limit=limit) == ["e", "d", "c", "b", "a"]
    await bench.restart()
    await expire_log(bench)
    await act(bench, "f")
    assert await listed(bench, limit="2") == ["f", "e", "d", "c", "b", "a"]


async def test_a_span_of_time_may_lie_in_both_parts(bench) -> None:
    await act(bench, "a", "b")
    from_ms = bench.clock.now_ms()
    await expire_log(bench)
    await act(bench, "c")
    until_ms = bench.clock.now_ms()
    await act(bench, "d")
    assert await listed(bench, from_ms=str(from_ms), until_ms=str(until_ms)) == ["c", "b"]
    assert await listed(bench, until_ms=str(from_ms)) == ["b", "a"]


async def test_acts_end_with_their_own_retention(bench) -> None:
    await act(bench, "a")
    await expire_log(bench)
    bench.clock.advance_ms(AUDIT_MS)
    await act(bench, "b")
    assert await listed(bench) == ["b"]
    await expire_log(bench)
    assert [module.decode(value).target for _key, (value, _at) in bench.store.state.items(AUDITED)] == ["client=b"]


async def test_the_acts_of_an_expired_log_are_bounded(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    monkeypatch.setattr(module, "PIECE", 2)
    await act(bench, *"abcde")
    await expire_log(bench)
    await act(bench, "f")
    assert await listed(bench) == ["f", "e", "d", "c"]
