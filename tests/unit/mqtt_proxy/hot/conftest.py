"""Every test of the proxy's hot loops runs on both twins."""

from __future__ import annotations

import pytest

from mqtt_proxy import hot
from remoting.native.packet_contracts import Core


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> Core:
    """One twin; the compiled one is skipped, with the reason, where it was not built."""
    if request.param == "pure":
        return hot.pure_core()
    if hot.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {hot.choice.reason}")
    return hot.compiled_core()
