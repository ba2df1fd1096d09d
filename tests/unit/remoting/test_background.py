"""The death of a task that nobody awaits is logged and remembered."""

from __future__ import annotations

import asyncio
import logging

import pytest

from remoting import background


async def _fail() -> None:
    raise ValueError("no address")


async def _end() -> None:
    pass


async def test_a_death_is_an_error_line_and_remembered(caplog: pytest.LogCaptureFixture) -> None:
    """While the task object is still kept, which is when asyncio itself says nothing."""
    kept = background.task(_fail(), "follows the routes")
    with caplog.at_level(logging.ERROR):
        await asyncio.wait([kept])
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == [
        "the task that follows the routes has ended: ValueError('no address')"
    ]
    assert background.deaths() == {"follows the routes": "ValueError('no address')"}


async def test_cancelling_and_returning_are_no_deaths() -> None:
    """Nor does another loop's death count here."""
    waiting = background.task(asyncio.Event().wait(), "waits")  # type: ignore[arg-type]
    returned = background.task(_end(), "returns")
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting, returned])
    await asyncio.sleep(0)
    assert background.deaths() == {}
