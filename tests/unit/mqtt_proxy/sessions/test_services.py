"""Tasks are kept until they are done, and what fails in one that nobody expected is said in the log."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import CapturingLogger

from mqtt_proxy.sessions import services
from tests.unit.mqtt_proxy.rig import running, settle


async def test_tasks_are_kept_until_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fails or is cancelled."""
    log = CapturingLogger()
    monkeypatch.setattr(services, "LOG", log)
    async with running() as rig:
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        async def fail() -> None:
            raise ValueError

        rig.services.spawn(wait())
        rig.services.spawn(fail())
        rig.services.spawn(wait()).cancel()
        await settle()
        assert len(rig.services.tasks) == 1
        go.set()
        await settle()
        assert rig.services.tasks == set()
        assert [call.kwargs["error"] for call in log.calls] == ["ValueError()"]
