"""The compiled intake's own danger: references it counts by hand."""

from __future__ import annotations

import sys

import pytest

from broker.api import hot
from mqtt_proxy.mqtt.codec.packets import Publish

pytestmark = pytest.mark.skipif(hot.choice.name != "compiled", reason=f"no compiled twin: {hot.choice.reason}")


def test_nothing_is_lost_or_kept() -> None:
    """After a million messages each value is referred to as often as before."""
    core, queues, body = hot.compiled_core(), (1, 2), bytearray(b"body").decode().encode()
    run = (b"client", 1 << 50, [Publish(b"a", body, 1, False, False, 1)] * 1_000)
    watched = (queues, body, run[1])
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(100):
        core.messages([run], {b"a": queues}, None, None, 100, 100)
    assert [sys.getrefcount(one) for one in watched] == before
