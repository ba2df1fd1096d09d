"""Tasks are kept until they are done, and their failures are not reported twice."""

from __future__ import annotations

import asyncio

from tests.unit.mqtt_proxy.bridge.rig import running, settle


async def test_tasks_are_kept_until_done() -> None:
    """Also one that fails or is cancelled."""
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
