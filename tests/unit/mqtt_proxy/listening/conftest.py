"""Connections behave the same on the driver and on the loop's transports."""

from __future__ import annotations

import pytest

from mqtt_proxy.listening import native_sockets


@pytest.fixture(params=["pure", "compiled"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plain sockets are served by this driver; the compiled one is skipped, with the reason, where it was not built."""
    if request.param == "compiled" and native_sockets.choice.name != "compiled":
        pytest.skip(f"no driver: {native_sockets.choice.reason}")
    monkeypatch.setattr(
        native_sockets,
        "core",
        native_sockets.pure_core() if request.param == "pure" else native_sockets.compiled_core(),
    )
    return str(request.param)
