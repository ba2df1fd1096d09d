"""Connections behave the same on the driver and on the loop's transports."""

from __future__ import annotations

import pytest

from mqtt_proxy.front import hot


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plain sockets are served by this one; the compiled one is skipped, with the reason, where it was not built."""
    if request.param == "compiled" and hot.choice.name != "compiled":
        pytest.skip(f"no driver: {hot.choice.reason}")
    monkeypatch.setattr(hot, "core", hot.pure_core() if request.param == "pure" else hot.compiled_core())
    return str(request.param)
