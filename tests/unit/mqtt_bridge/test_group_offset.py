from __future__ import annotations

from pathlib import Path

import pytest

from mqtt_bridge.log_reader import GroupOffset
from remoting.client.connection import dial
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.commands import Command
from tests.unit.mqtt_bridge.rig import installation


async def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    for stored in (None, 5):
        async with installation(tmp_path / "data") as app:
            line = await dial(f"127.0.0.1:{app.ports()['remoting']}")
            offset = GroupOffset(line, "bridge-x", "%LMQ%name", 0)
            assert await offset.stored() == stored
            await offset.store(5)
            assert await offset.stored() == 5
            assert await GroupOffset(line, "bridge-y", "%LMQ%name", 0).stored() is None
            await line.close()


async def test_an_answer_without_an_offset_is_a_violation() -> None:
    class Odd:
        async def request(self, command: Command) -> Command:
            return command.reply()

    with pytest.raises(RemoteViolation, match="without an offset"):
        await GroupOffset(Odd(), "g", "t", 0).stored()  # type: ignore[arg-type]
