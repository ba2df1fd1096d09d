"""One set of tools for all sessions of a proxy."""

from __future__ import annotations

import pytest

from tests.unit.mqtt_proxy.rig import running


async def test_all_sessions_have_the_same_tools_and_nothing_else_is_put_there() -> None:
    """They are parts of one proxy: what one puts into the cache the other finds."""
    async with running() as rig:
        assert rig.tools.cache is rig.cache
        with pytest.raises(AttributeError):
            rig.tools.spare = 1  # type: ignore[attr-defined]
