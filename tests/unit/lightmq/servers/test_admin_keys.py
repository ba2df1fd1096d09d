"""Keys of parts without a port for signed requests; changes of the list are followed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightmq.servers.parts import AdminKeys
from remoting.protocol.errors import LocalMisuse

HERE, ELSEWHERE = "127.0.0.1:1", "10.0.0.9:1"


async def test_keys_alone() -> None:
    keys = AdminKeys(("prometheus:one",), None)
    await keys.start()
    assert keys.guard.judge("/metrics", HERE, "") == ""
    assert keys.guard.judge("/metrics", ELSEWHERE, "") == "unproven"
    assert keys.guard.judge("/metrics", ELSEWHERE, "Bearer prometheus:one") == ""
    await keys.stop()
    with pytest.raises(LocalMisuse, match="entry 1"):
        AdminKeys(("no-secret",), None)


async def test_a_list_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remoting.access.key_policy.LOOK_INTERVAL_S", 0.01)
    rules = tmp_path / "rules"
    rules.write_text("user prometheus\nrole monitor\n")
    keys = AdminKeys(("prometheus:one", "boss:two"), rules)
    await keys.start()
    shown = [keys.guard.judge("/metrics", HERE, f"Bearer {key}") for key in ("prometheus:one", "boss:two", "")]
    assert shown == ["", "forbidden", "unproven"]
    rules.write_text("user boss\nrole admin\n")
    async with asyncio.timeout(20):
        while keys.guard.judge("/status", ELSEWHERE, "Bearer boss:two"):
            await asyncio.sleep(0.01)
    assert keys.guard.judge("/metrics", HERE, "Bearer prometheus:one") == "forbidden"
    await keys.stop()
    await keys.stop()
