"""The engine of running controllers is changed one controller at a time, on their files as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes.controllers import ControllerProcess, Controllers, IdTaker, known_ids

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


async def change(controllers: Controllers, taker: IdTaker, engine: str) -> None:
    """Restart one after the other with this engine; decisions continue as soon as two have the same."""
    for each in controllers.processes:
        each.kill()
        assert isinstance(each, ControllerProcess)
        each.variables["LIGHTMQ_CONTROLLER__RAFT_ENGINE"] = engine
        await asyncio.to_thread(each.start)
        count = len(taker.answered)
        async with asyncio.timeout(60):
            while len(taker.answered) < count + 5:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("before", "after"), [("pysyncobj", "dledger"), pytest.param("dledger", "pysyncobj", marks=pytest.mark.slow)]
)
async def test_it_is_changed_one_controller_at_a_time(tmp_path: Path, before: str, after: str) -> None:
    """From the engine of earlier releases to this one's, or back: nothing is lost, and each says why it waits."""
    controllers = Controllers(tmp_path, snapshot_entries=10, raft_engine=before)
    taker = IdTaker(controllers, "g")
    try:
        controllers.start()
        controllers.wait_ready()
        taker.begin()
        await change(controllers, taker, after)
        await taker.end()
        assert set(taker.answered) <= await known_ids(controllers)
    finally:
        controllers.kill_if_running()
    for each in controllers.processes:
        said = each.log.read_text()
        assert "it agrees by the other engine: set controller.raft_engine to the same on each" in said, said[-2_000:]
        assert "Traceback" not in said, said
