"""Every test here runs on both twins; `core` is the proxy's packet loops, `bench` a store."""

from __future__ import annotations

import pytest

from remoting.native import packets
from remoting.native.contracts import PacketCore
from tests.unit.broker.conftest import bench
from tests.unit.broker.store.conftest import twin

__all__ = ["bench", "core", "twin"]


@pytest.fixture(params=["pure", "compiled"])
def core(request: pytest.FixtureRequest) -> PacketCore:
    """One twin; the compiled one is skipped, with the reason, where it was not built."""
    if request.param == "pure":
        return packets.pure_core()
    if packets.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {packets.choice.reason}")
    return packets.compiled_core()
